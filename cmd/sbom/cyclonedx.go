package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
)

// The parts of a CycloneDX 1.5 document (https://cyclonedx.org/docs/1.5/json/) that are used here.
type (
	document struct {
		Format       string       `json:"bomFormat"`
		SpecVersion  string       `json:"specVersion"`
		SerialNumber string       `json:"serialNumber,omitempty"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type     string          `json:"type"`
		Ref      string          `json:"bom-ref"`
		Name     string          `json:"name"`
		Version  string          `json:"version"`
		PURL     string          `json:"purl"`
		Hashes   []hash          `json:"hashes,omitempty"`
		Licenses []licenseChoice `json:"licenses,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	licenseChoice struct {
		License license `json:"license"`
	}
	license struct {
		ID string `json:"id"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn,omitempty"`
	}
)

// newSBOM returns the CycloneDX document of a product, its modules, and the packages that are
// shipped with it. Its serial number is a hash of its content, so that the same content has the same
// number.
func newSBOM(name, version string, modules []module, packages []debPackage) ([]byte, error) {
	d := document{Format: "CycloneDX", SpecVersion: "1.5", Version: 1}
	purl := "pkg:golang/github.com/mig-exporter/" + name + "@" + version
	d.Metadata.Component = component{
		Type:     "application",
		Ref:      purl,
		Name:     name,
		Version:  version,
		PURL:     purl,
		Licenses: []licenseChoice{{license{"Apache-2.0"}}},
	}
	root := dependency{Ref: purl}

	for i := range modules {
		c, err := newComponent(&modules[i])
		if err != nil {
			return nil, err
		}

		d.Components = append(d.Components, c)
	}

	for _, p := range packages {
		purl := p.purl()
		d.Components = append(d.Components,
			component{Type: "library", Ref: purl, Name: p.name, Version: p.version, PURL: purl})
	}

	for i := range d.Components {
		root.DependsOn = append(root.DependsOn, d.Components[i].Ref)
	}

	d.Dependencies = []dependency{root}

	content, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}

	sum := sha256.Sum256(content)
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // the version (8) and variant bits of a UUID
	id := hex.EncodeToString(sum[:16])
	d.SerialNumber = "urn:uuid:" + strings.Join(
		[]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]},
		"-",
	)
	content, err = json.MarshalIndent(d, "", "  ")

	return append(content, '\n'), err
}

func newComponent(m *module) (component, error) {
	purl := "pkg:golang/" + m.path + "@" + m.version
	c := component{Type: "library", Ref: purl, Name: m.path, Version: m.version, PURL: purl}

	if encoded, ok := strings.CutPrefix(m.sum, "h1:"); ok {
		sum, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return component{}, fmt.Errorf("checksum of module %s: %w", m.path, err)
		}

		c.Hashes = []hash{{Algorithm: "SHA-256", Content: hex.EncodeToString(sum)}}
	}

	ids, err := m.licenses()
	for _, id := range ids {
		c.Licenses = append(c.Licenses, licenseChoice{license{id}})
	}

	return c, err
}

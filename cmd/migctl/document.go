package main

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// printDocument prints a document of the server as indented JSON or as YAML, with the keys in its order.
func (s *session) printDocument(data []byte) error {
	var out bytes.Buffer
	var err error
	if s.opts.Output == formYAML {
		err = toYAML(&out, data)
	} else if err = json.Indent(&out, bytes.TrimSpace(data), "", "  "); err == nil {
		out.WriteByte('\n')
	}
	if err != nil {
		return fmt.Errorf("print the document: %w", err)
	}
	_, err = s.out.Write(out.Bytes())
	return err
}

// toYAML goes over YAML's own tree: JSON is YAML, and so numbers keep their digits and keys their order.
func toYAML(out *bytes.Buffer, data []byte) error {
	var tree yaml.Node
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return err
	}
	blockStyle(&tree)
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&tree); err != nil {
		return err
	}
	return encoder.Close()
}

// blockStyle drops JSON's braces and quotes; the encoder quotes again what would not be a string without.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		blockStyle(child)
	}
}

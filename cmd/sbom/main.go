// sbom writes what is linked into programs: a CycloneDX document of their modules, and the texts of
// their licenses.
//
// The modules are those in the programs' build information. go list says in which folders their
// linked packages are; all license files between such a folder and the root of the module count.
// Nothing is fetched over the network, and the same programs give the same bytes. Packages that are
// shipped with the programs, as in the container image, are listed by the caller.
//
// We use no cyclonedx-gomod: it describes one program at a time, without the texts of the licenses,
// which we have to ship, and without Debian packages.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, errOut io.Writer) error {
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	flags.SetOutput(errOut)
	name := flags.String("name", "mig-exporter", "name of the product")
	version := flags.String("version", "", "version of the product")
	sbomPath := flags.String("sbom", "", "CycloneDX file to write")
	licensesPath := flags.String("licenses", "", "file to write with the texts of the licenses")

	packagesPath := flags.String(
		"packages",
		"",
		"file that lists Debian packages shipped with the product, one in a "+
			"line: vendor, name, version, architecture [distribution, source package]",
	)
	if err := flags.Parse(args); err != nil {
		return err
	}

	if *version == "" || *sbomPath == "" || *licensesPath == "" || flags.NArg() == 0 {
		return fmt.Errorf("expected -version, -sbom, -licenses and programs, got %q", args)
	}

	modules, err := readModules(flags.Args())
	if err != nil {
		return err
	}

	packages, err := readPackages(*packagesPath)
	if err != nil {
		return err
	}

	document, err := newSBOM(*name, *version, modules, packages)
	if err != nil {
		return err
	}

	if err := os.WriteFile(*sbomPath, document, 0o644); err != nil {
		return err
	}

	return os.WriteFile(*licensesPath, licenseTexts(*name, modules), 0o644)
}

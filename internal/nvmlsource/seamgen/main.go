// Command seamgen generates the methods of the driver seam that only pass a call on: those of the binding of go-nvml,
// of the recorder in internal/capture, and of the fakes of a driver in tests. Its input are the interfaces of
// driver.go.
//
// A method that is written by hand is not generated. Methods with handles as parameters or results must be written by
// hand.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "seamgen:", err)
		os.Exit(1) //nolint:forbidigo // the main function of a program
	}
}

// run writes the generated files of the seam in dir.
func run(dir string) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}

	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}

	return nil
}

// generate returns the generated files by their paths below dir, the folder of driver.go.
func generate(dir string) (map[string][]byte, error) {
	seam, err := parseSeam(filepath.Join(dir, "driver.go"))
	if err != nil {
		return nil, err
	}

	constants, err := nvmlConstants(dir)
	if err != nil {
		return nil, err
	}

	files := map[string][]byte{}

	for _, o := range append(outputs(constants), testOutputs()...) {
		text, err := o.write(dir, seam)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.file, err)
		}

		files[o.file] = text
	}

	return files, nil
}

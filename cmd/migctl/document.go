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
		err = writeYAML(&out, data)
	} else if err = json.Indent(&out, bytes.TrimSpace(data), "", "  "); err == nil {
		out.WriteByte('\n')
	}

	if err != nil {
		return fmt.Errorf("print the document: %w", err)
	}

	_, err = s.out.Write(out.Bytes())

	return err
}

// writeYAML converts JSON by way of a YAML tree, so that numbers keep their digits and keys their order.
func writeYAML(out *bytes.Buffer, data []byte) error {
	var tree yaml.Node
	if err := yaml.Unmarshal(data, &tree); err != nil {
		return err
	}

	setBlockStyle(&tree)
	encoder := yaml.NewEncoder(out)
	encoder.SetIndent(2)

	if err := encoder.Encode(&tree); err != nil {
		return err
	}

	return encoder.Close()
}

// setBlockStyle removes JSON's braces and quotes. The encoder quotes again what would otherwise not be a string.
func setBlockStyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		setBlockStyle(child)
	}
}

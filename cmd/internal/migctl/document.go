package migctl

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// printsOutcome reports whether a command that changes something prints a document to standard
// output when it is done. Everything for people, the question included, then goes to standard
// error.
func (o *options) printsOutcome() bool {
	switch o.Command {
	case commandApply, commandRollback, commandAccept, commandSettled:
		return o.Output == formJSON || o.Output == formYAML
	}

	return false
}

// printOutcome prints the document of an operation that has stopped, or of a plan without steps, if
// the operator has asked for one.
func (s *session) printOutcome(document any) error {
	if !s.opts.printsOutcome() {
		return nil
	}

	data, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("print the document: %w", err)
	}

	if err := s.page.flush(); err != nil {
		return err
	}

	return s.printDocument(data)
}

// printDocument prints a document of the server as indented JSON or as YAML, with the keys in its
// order.
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

// writeYAML converts JSON by way of a YAML tree, so that numbers keep their digits and keys their
// order.
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

// setBlockStyle removes JSON's braces and quotes. The encoder quotes again what would otherwise not
// be a string.
func setBlockStyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		setBlockStyle(child)
	}
}

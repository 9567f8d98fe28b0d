package migctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
)

// printsOutcome reports whether the command changes something and prints a document to standard output
// when it is done. Then everything for people goes to standard error, even the question.
func (o *options) printsOutcome() bool {
	switch o.Command {
	case commandApply, commandRollback, commandAccept, commandSettled:
		return o.Output == formJSON || o.Output == formYAML
	}

	return false
}

// printOutcome prints the document of an operation that has stopped, or of a plan without steps, if
// --output asks for it.
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

// printDocument prints a document of the server as indented JSON or as YAML, with the keys in the
// server's order. It escapes characters that a terminal could take for a command.
func (s *session) printDocument(data []byte) error { return s.writeDocument(s.out, data) }

// writeDocument is printDocument for any writer.
func (s *session) writeDocument(to io.Writer, data []byte) error {
	var out bytes.Buffer

	var err error
	escape := escapeForJSON

	if s.opts.Output == formYAML {
		err = writeYAML(&out, data)
		escape = escapeForYAML
	} else if err = json.Indent(&out, bytes.TrimSpace(data), "", "  "); err == nil {
		out.WriteByte('\n')
	}

	if err != nil {
		return fmt.Errorf("print the document: %w", err)
	}

	_, err = io.WriteString(to, escapeUnprintable(out.String(), escape))

	return err
}

// escapeUnprintable escapes the characters of a document that a terminal could take for a command.
func escapeUnprintable(document string, escape func(rune) string) string {
	var safe strings.Builder

	for _, c := range document {
		if isUnprintable(c) && c != '\n' {
			safe.WriteString(escape(c))
		} else {
			safe.WriteRune(c)
		}
	}

	return safe.String()
}

func isUnprintable(c rune) bool { return !unicode.IsPrint(c) }

func escapeForJSON(c rune) string {
	if c <= 0xFFFF {
		return fmt.Sprintf(`\u%04x`, c)
	}

	high, low := utf16.EncodeRune(c)

	return fmt.Sprintf(`\u%04x\u%04x`, high, low)
}

// escapeForYAML returns an escape for use within double quotes. Unlike JSON, YAML has no surrogates.
func escapeForYAML(c rune) string { return fmt.Sprintf(`\U%08x`, c) }

// writeYAML writes JSON as YAML. It converts it through a YAML tree, so that numbers keep their digits
// and keys their order.
func writeYAML(out *bytes.Buffer, data []byte) error {
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return err
	}

	// YAML's parser refuses some characters that JSON allows, unless they are escaped.
	readable := escapeUnprintable(compact.String(), escapeForYAML)

	var tree yaml.Node
	if err := yaml.Unmarshal([]byte(readable), &tree); err != nil {
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

// setBlockStyle removes JSON's braces and quotes. The encoder adds quotes again to strings that would
// otherwise be something else. Texts with escapes keep their quotes, because YAML has escapes only
// within quotes.
func setBlockStyle(n *yaml.Node) {
	if strings.IndexFunc(n.Value, isUnprintable) < 0 {
		n.Style = 0
	}

	for _, child := range n.Content {
		setBlockStyle(child)
	}
}

package migctl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// exitPartial is the exit code of a command that failed on some of several nodes.
const exitPartial = 7

const nodesHelp = "Of several nodes: 0 all have answered; 7 some have failed; otherwise all have, " +
	"and it is the code that they share, or 1."

// nodeResult is the result of a command on one of several nodes.
type nodeResult struct {
	Node     string          `json:"node"`
	ExitCode int             `json:"exitCode"`
	Error    string          `json:"error,omitempty"`
	Document json.RawMessage `json:"document,omitempty"`

	out, errOut bytes.Buffer
}

// runOnNodes runs the command on several nodes, at most --parallel at a time, and returns the exit
// code.
func (s *session) runOnNodes(ctx context.Context) (int, error) {
	nodes := strings.FieldsFunc(s.opts.Node, func(r rune) bool { return r == ',' })

	if s.opts.AllNodes {
		var err error
		if nodes, err = s.opts.program.Nodes(ctx); err != nil {
			return 0, cmp.Or(ctx.Err(), UnreachableCluster(err))
		}
	}

	slices.Sort(nodes)

	nodes = slices.Compact(nodes)
	if len(nodes) == 0 {
		return 0, errors.New("no node has an exporter")
	}

	// We read standard input once, for all nodes.
	var input []byte

	if s.opts.Spec.File == "-" {
		var err error
		if input, err = io.ReadAll(s.in); err != nil {
			return 0, fmt.Errorf("read standard input: %w", err)
		}
	}

	results := make([]nodeResult, len(nodes))

	var group errgroup.Group
	group.SetLimit(s.opts.Parallel)

	for i, node := range nodes {
		group.Go(func() error {
			results[i].Node = node
			s.runOnNode(ctx, &results[i], input)

			return nil
		})
	}

	group.Wait() //nolint:errcheck // the functions return no error

	if ctx.Err() != nil {
		return 0, ctx.Err()
	}

	return exitCodeOfNodes(results), s.writeResults(results)
}

// runOnNode runs the command on one node, and keeps its output in r.
func (s *session) runOnNode(ctx context.Context, r *nodeResult, input []byte) {
	node := *s
	node.opts.Node = r.Node
	node.opts.AllNodes = false
	node.opts.GPUs = slices.Clone(s.opts.GPUs) // the command completes UUIDs in place
	node.in = bytes.NewReader(input)
	node.out = &r.out
	node.errOut = &r.errOut
	node.inTerminal = false

	// writeResults puts the documents of all nodes into one, as JSON or YAML.
	if node.opts.Output == formYAML {
		node.opts.Output = formJSON
	}

	node.page = node.newPage(node.out, s.outTerminal)
	err := node.runCommand(ctx)
	err = cmp.Or(err, node.page.flush())

	if err != nil {
		r.Error = err.Error()
		r.ExitCode = node.reportError(err)
	}
}

// exitCodeOfNodes returns the exit code of a command on several nodes: see nodesHelp.
func exitCodeOfNodes(results []nodeResult) int {
	codes := make([]int, len(results))
	for i := range results {
		codes[i] = results[i].ExitCode
	}

	slices.Sort(codes)

	least, most := codes[0], codes[len(codes)-1]

	switch {
	case least == most:
		return least
	case least == exitOK:
		return exitPartial
	}

	return exitFailed
}

// writeResults writes the results of all nodes: as one document, or as texts, each below its node's
// name.
func (s *session) writeResults(results []nodeResult) error {
	if s.opts.Output == formJSON || s.opts.Output == formYAML {
		for i := range results {
			if data := bytes.TrimSpace(results[i].out.Bytes()); json.Valid(data) {
				results[i].Document = data
			}
		}

		data, err := json.Marshal(map[string]any{"nodes": results})
		if err != nil {
			return fmt.Errorf("write the results: %w", err)
		}

		return s.printDocument(data)
	}

	failed := 0

	for i := range results {
		r := &results[i]
		if r.ExitCode != exitOK {
			failed++
		}

		if s.opts.Output != formName {
			fmt.Fprintf(s.out, "==> %s\n", r.Node)
		}

		if _, err := s.out.Write(r.out.Bytes()); err != nil {
			return err
		}

		if r.errOut.Len() > 0 {
			fmt.Fprintf(s.errOut, "==> %s\n%s", r.Node, r.errOut.String())
		}
	}

	if failed > 0 {
		fmt.Fprintf(s.errOut, "%d of %d nodes failed.\n", failed, len(results))
	}

	return nil
}

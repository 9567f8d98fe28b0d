package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// completeCommand is what the completion scripts call with the words so far, the last being the one to complete. It prints
// a candidate a line.
const completeCommand = "__complete"

// completeTimeout bounds the questions to the server: a shell waits for them.
const completeTimeout = time.Second

// complete prints candidates; where anything fails it prints those that it has, and never an error into a command line.
func (s *session) complete(ctx context.Context, words []string) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	last := ""
	if n := len(words); n > 0 {
		words, last = words[:n-1], words[n-1]
	}
	model := newApp(&s.opts).Model()
	for _, candidate := range s.candidates(ctx, model, words, last) {
		if strings.HasPrefix(candidate, last) {
			if _, err := io.WriteString(s.out, candidate+"\n"); err != nil {
				return
			}
		}
	}
}

// typed is what a command line says before the word to complete.
type typed struct {
	command *kingpin.CmdModel
	args    []string             // after the command
	waiting *kingpin.FlagModel   // a flag that takes the next word as its value
	given   map[string]string    // flags with their values
	flags   []*kingpin.FlagModel // that may be given
}

func readTyped(model *kingpin.ApplicationModel, words []string) typed {
	t := typed{given: map[string]string{}, flags: model.Flags}
	for _, w := range words {
		switch {
		case t.waiting != nil:
			t.given[t.waiting.Name] = w
			t.waiting = nil
		case strings.HasPrefix(w, "-") && w != "-":
			name, value, joined := strings.Cut(w, "=")
			if f := findFlag(t.flags, name); f != nil && joined {
				t.given[f.Name] = value
			} else if f != nil && !f.IsBoolFlag() {
				t.waiting = f
			}
		case t.command != nil:
			t.args = append(t.args, w)
		default:
			for _, c := range model.Commands {
				if c.Name == w {
					t.command = c
					t.flags = append(slices.Clone(t.flags), c.Flags...)
				}
			}
		}
	}
	return t
}

func findFlag(flags []*kingpin.FlagModel, word string) *kingpin.FlagModel {
	for _, f := range flags {
		if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

func (s *session) candidates(ctx context.Context, model *kingpin.ApplicationModel, words []string, last string) []string {
	t := readTyped(model, words)
	s.connect(&t)
	if t.waiting != nil {
		return s.flagValues(ctx, t.waiting.Name, &t)
	}
	if name, _, joined := strings.Cut(last, "="); joined && strings.HasPrefix(last, "--") {
		if f := findFlag(t.flags, name); f != nil {
			return prefixed(name+"=", s.flagValues(ctx, f.Name, &t))
		}
	}
	var all []string
	if strings.HasPrefix(last, "-") {
		for _, f := range t.flags {
			if !f.Hidden {
				all = append(all, "--"+f.Name)
			}
		}
		return all
	}
	if t.command == nil {
		for _, c := range model.Commands {
			all = append(all, c.Name)
		}
		return all
	}
	return s.argValues(ctx, &t)
}

// connect makes a client with the flags and variables that say where to; without one there are fewer candidates.
func (s *session) connect(t *typed) {
	o := options{Timeout: completeTimeout, Address: defaultAddress}
	for name, to := range map[string]*string{
		"address": &o.Address, "token-file": &o.TokenFile, "ca-file": &o.CAFile, "cert-file": &o.CertFile, "key-file": &o.KeyFile,
	} {
		if v, _ := s.lookup("MIGCTL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); v != "" {
			*to = v
		}
		if v, ok := t.given[name]; ok {
			*to = v
		}
	}
	if c, err := newClient(&o); err == nil {
		s.client = c
	}
}

func (s *session) argValues(ctx context.Context, t *typed) []string {
	switch t.command.Name {
	case commandMode:
		if len(t.args) == 0 {
			return []string{"on", "off"}
		}
		return s.gpuNames(ctx)
	case commandCompletion:
		return []string{"bash", "zsh", "fish"}
	case commandConfirm:
		return append(s.migNames(ctx), s.gpuNames(ctx)...)
	case commandGet, commandProfiles:
		return s.gpuNames(ctx)
	case commandRollback, commandAccept, commandSettled, commandOperations:
		if len(t.args) == 0 {
			return s.operationNames(ctx)
		}
	}
	return nil
}

func (s *session) flagValues(ctx context.Context, flag string, t *typed) []string {
	switch flag {
	case "color":
		return []string{"auto", "always", "never"}
	case "output":
		if t.command != nil && t.command.Name == commandPlan {
			return []string{formText, formJSON, formYAML}
		}
		if t.command != nil && t.command.Name == commandGet {
			return []string{formTable, formWide, formJSON, formYAML}
		}
		if t.command != nil && t.command.Name == commandFleet {
			return []string{formText, formJSON, formCSV, formMarkdown}
		}
		return []string{formTable, formJSON, formYAML}
	case "gpus":
		return append(s.gpuNames(ctx), "all")
	case "layout":
		return s.layoutNames(ctx)
	case "force":
		return s.migNames(ctx)
	case "devices":
		return prefixed("", s.profileNames(ctx))
	}
	return nil
}

func prefixed(prefix string, all []string) []string {
	out := make([]string, 0, len(all))
	for _, v := range all {
		out = append(out, prefix+v)
	}
	return out
}

// node asks for the node; nothing where it does not answer.
func (s *session) node(ctx context.Context) nodedoc.Node {
	var node nodedoc.Node
	if s.client == nil || s.client.fetch(ctx, "/node", &node) != nil {
		return nodedoc.Node{}
	}
	return node
}

func (s *session) gpuNames(ctx context.Context) []string {
	var all, uuids []string
	for _, g := range s.node(ctx).GPUs {
		all = append(all, fmt.Sprint(g.Index))
		uuids = append(uuids, string(g.UUID))
	}
	return append(all, uuids...)
}

func (s *session) migNames(ctx context.Context) []string {
	var all []string
	for _, g := range s.node(ctx).GPUs {
		for _, inst := range g.GPUInstances {
			for _, c := range inst.ComputeInstances {
				all = append(all, string(c.UUID))
			}
		}
	}
	return all
}

func (s *session) profileNames(ctx context.Context) []string {
	var all []string
	for _, g := range s.node(ctx).GPUs {
		for _, p := range g.Profiles {
			all = append(all, p.Name+"=")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *session) operationNames(ctx context.Context) []string {
	var list api.Operations
	if s.client == nil || s.client.fetch(ctx, "/operations", &list) != nil {
		return nil
	}
	var all []string
	for i := range list.Operations {
		all = append(all, list.Operations[i].ID)
	}
	return all
}

func (s *session) layoutNames(ctx context.Context) []string {
	var list api.Layouts
	if s.client == nil || s.client.fetch(ctx, "/layouts", &list) != nil {
		return nil
	}
	var all []string
	for i := range list.Layouts {
		all = append(all, list.Layouts[i].Name)
	}
	return all
}

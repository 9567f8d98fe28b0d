package main

import "embed"

// The completion scripts ask migctl __complete, so that they know what the program knows.
//
//go:embed completion/migctl.bash completion/migctl.zsh completion/migctl.fish
var completionScripts embed.FS

func (s *session) printCompletion() error {
	script, err := completionScripts.ReadFile("completion/migctl." + s.opts.Shell)
	if err != nil {
		return err
	}
	_, err = s.out.Write(script)
	return err
}

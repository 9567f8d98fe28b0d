package main

import (
	"fmt"
	"io"
)

// noFiles asks kubectl not to complete names of files: it is cobra's ShellCompDirectiveNoFileComp.
const noFiles = ":4"

// complete writes completions in kubectl's format: one word on each line, then a directive.
func complete(out io.Writer, args []string) int {
	code := newPlugin().program().Run(append([]string{"--completion-bash"}, args...))

	fmt.Fprintf(out, "\n%s\n", noFiles)

	return code
}

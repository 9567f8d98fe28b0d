package main

import (
	"fmt"
	"io"
)

// noFiles asks kubectl not to complete names of files, in cobra's terms (ShellCompDirectiveNoFileComp).
const noFiles = ":4"

// complete writes what kubectl completes its command line with: a word a line, then a directive.
func complete(out io.Writer, args []string) int {
	code := newPlugin().program().Run(append([]string{"--completion-bash"}, args...))

	fmt.Fprintf(out, "\n%s\n", noFiles)

	return code
}

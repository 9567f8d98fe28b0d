package main

import "fmt"

// noFiles asks kubectl not to complete names of files, in cobra's terms (ShellCompDirectiveNoFileComp).
const noFiles = ":4"

// complete writes what kubectl completes its command line with: a word a line, then a directive.
func complete(args []string) int {
	code := newPlugin().program().Run(append([]string{"--completion-bash"}, args...))

	fmt.Println(noFiles)

	return code
}

package usage

import (
	"slices"
	"strings"

	"github.com/alecthomas/kingpin/v2"
)

const (
	// completionFlag is what the scripts of all shells ask a program with. The words of the command
	// line follow it, up to the one that is completed.
	completionFlag = "--completion-bash"

	// Kingpin has scripts for bash and zsh. We print the one for fish in place of bash's.
	bashScriptFlag = "--completion-script-bash"
	fishScriptFlag = "--completion-script-fish"
)

// fishScript completes the commands of a program in fish. Like kingpin's script for zsh it names
// files if the program knows nothing.
const fishScript = `function __{{.App.Name}}_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l flag ''
    if string match -q -- '--*=*' $word
        set word (string split -m 1 = -- $word)
        set flag $word[1]=
    end
    set -l found ($words[1] --completion-bash $words[2..-1] $word)
    if test (count $found) -gt 0
        printf '%s\n' $flag$found
    else
        printf '%s\n' $flag(__fish_complete_path $word[-1])
    end
end
complete --command {{.App.Name}} --no-files --arguments '(__{{.App.Name}}_complete)'
`

// CompletionArgs returns the arguments of a program as kingpin can complete them: it knows long
// flags only, takes the sign in "--output=json" for a word, since bash makes it one, and names
// commands where a file is wanted. If the arguments ask for the script for
// fish, kingpin prints that one. Other command lines stay as they are.
func CompletionArgs(app *kingpin.Application, args []string) []string {
	if len(args) > 0 && args[0] == fishScriptFlag {
		kingpin.BashCompletionTemplate = fishScript
		return []string{bashScriptFlag}
	}

	if len(args) == 0 || args[0] != completionFlag {
		return args
	}

	names := longNames(app)
	known := args[:1:1]

	for _, arg := range args[1:] {
		if arg == "=" && strings.HasPrefix(known[len(known)-1], "--") {
			continue
		}

		if name := names[arg]; name != "" {
			arg = name
		}

		known = append(known, arg)
	}

	// After a lone "--" kingpin has no hints, and the shell names files.
	n := len(known)
	if n > 2 && slices.Contains(fileFlags(app), known[n-2]) && !strings.HasPrefix(known[n-1], "-") {
		return []string{completionFlag, "--", ""}
	}

	return known
}

// File is the value of a flag that names a file, which shells complete.
func File(target *string) kingpin.Value { return (*file)(target) }

type file string

func (f *file) String() string { return string(*f) }

func (f *file) Set(name string) error {
	*f = file(name)
	return nil
}

// fileFlags returns the flags that name files, with their dashes.
func fileFlags(app *kingpin.Application) []string {
	var names []string

	for _, f := range flagsOf(app) {
		if _, ok := f.Value.(*file); ok {
			names = append(names, "--"+f.Name)
		}
	}

	return names
}

// flagsOf returns the flags of a program and of its commands.
func flagsOf(app *kingpin.Application) []*kingpin.FlagModel {
	model := app.Model()
	flags := slices.Clone(model.Flags)

	for _, command := range model.FlattenedCommands() {
		flags = append(flags, command.Flags...)
	}

	return flags
}

// longNames returns the long names of the flags that have a short one, with their dashes. A lone
// dash becomes the beginning of all of them.
func longNames(app *kingpin.Application) map[string]string {
	names := map[string]string{"-": "--"}

	for _, f := range flagsOf(app) {
		if f.Short != 0 {
			names["-"+string(f.Short)] = "--" + f.Name
		}
	}

	return names
}

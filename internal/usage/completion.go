package usage

import (
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
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] --completion-bash $words[2..-1])
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command {{.App.Name}} --no-files --arguments '(__{{.App.Name}}_complete)'
`

// CompletionArgs returns the arguments of a program as kingpin can complete them: it knows long
// flags only, and takes the sign in "--output=json" for a word, since bash makes it one. If the
// arguments ask for the script for fish, kingpin prints that one. Other command lines stay as they
// are.
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

	return known
}

// longNames returns the long names of the flags that have a short one, with their dashes. A lone
// dash becomes the beginning of all of them.
func longNames(app *kingpin.Application) map[string]string {
	model := app.Model()
	names := map[string]string{"-": "--"}

	groups := []*kingpin.FlagGroupModel{model.FlagGroupModel}
	for _, command := range model.FlattenedCommands() {
		groups = append(groups, command.FlagGroupModel)
	}

	for _, group := range groups {
		for _, f := range group.Flags {
			if f.Short != 0 {
				names["-"+string(f.Short)] = "--" + f.Name
			}
		}
	}

	return names
}

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

	// Kingpin has scripts for bash and zsh; that for fish takes the place of bash's.
	bashScriptFlag = "--completion-script-bash"
	zshScriptFlag  = "--completion-script-zsh"
	fishScriptFlag = "--completion-script-fish"
)

// bashScript completes the commands of a program in bash, for which the = in "--output=json" is a
// word of its own. Files are named by bash itself if the program knows nothing.
const bashScript = `_{{.App.Name}}_bash_autocomplete() {
    local word=${COMP_WORDS[COMP_CWORD]#=}
    local found=$("${COMP_WORDS[0]}" --completion-bash "${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=($(compgen -W "$found" -- "$word"))
}
complete -F _{{.App.Name}}_bash_autocomplete -o default {{.App.Name}}
`

// zshScript completes the commands of a program in zsh. Zsh reads the file when the command is first
// completed, and expects that it completes that time, too: kingpin's script does not.
const zshScript = `#compdef {{.App.Name}}

_{{.App.Name}}() {
    local -a found=($("$words[1]" --completion-bash "${(@)words[2,CURRENT]}"))
    if [[ $PREFIX == --*=* ]]; then
        compset -P 1 '*='
    fi
    compadd -a found
    if [[ $compstate[nmatches] -eq 0 && $PREFIX != -* ]]; then
        _files
    fi
}

if [[ $funcstack[1] == _{{.App.Name}} ]]; then
    _{{.App.Name}} "$@"
else
    compdef _{{.App.Name}} {{.App.Name}}
fi
`

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
// flags only, wants "--output=json" as two words, of which bash makes three, and names commands
// where a file is wanted. If the arguments ask for the script of a shell, kingpin prints ours. Other
// command lines stay as they are.
func CompletionArgs(app *kingpin.Application, args []string) []string {
	if len(args) == 0 {
		return args
	}

	switch args[0] {
	case completionFlag:
		return completedArgs(app, args)
	case bashScriptFlag:
		kingpin.BashCompletionTemplate = bashScript
	case zshScriptFlag:
		kingpin.ZshCompletionTemplate = zshScript
	case fishScriptFlag:
		kingpin.BashCompletionTemplate = fishScript
		return []string{bashScriptFlag}
	}

	return args
}

// completedArgs returns the words that are to be completed.
func completedArgs(app *kingpin.Application, args []string) []string {
	names := longNames(app)
	known := args[:1:1]

	for i, arg := range args[1:] {
		if arg == "=" && strings.HasPrefix(known[len(known)-1], "--") {
			if i+2 < len(args) {
				continue // the value follows
			}

			arg = "" // the value is to be completed
		}

		if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "--") {
			known = append(known, flag)
			arg = value
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

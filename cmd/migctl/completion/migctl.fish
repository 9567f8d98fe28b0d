# fish completion of migctl. Use: migctl completion fish > ~/.config/fish/completions/migctl.fish
function __migctl_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c migctl -f -n 'not __fish_contains_opt -s f file' -a '(__migctl_complete)'
complete -c migctl -s f -l file -r -F

#compdef migctl
# zsh completion of migctl. Use: migctl completion zsh > "${fpath[1]}/_migctl"
_migctl() {
    local -a candidates
    candidates=("${(@f)$("${words[1]}" __complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    candidates=("${(@)candidates:#}")
    if (( ${#candidates} )); then
        compadd -- "${candidates[@]}"
    else
        _files
    fi
}
if [[ "$funcstack[1]" == "_migctl" ]]; then
    _migctl "$@"
else
    compdef _migctl migctl
fi

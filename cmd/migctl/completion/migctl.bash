# bash completion of migctl. Use: source <(migctl completion bash)
# Bash breaks words at = and :, migctl does not: the words are put together again, and what bash holds for done is cut off.
_migctl() {
    local line="${COMP_LINE:0:COMP_POINT}" words cur prefix candidate
    read -ra words <<< "$line"
    if [[ "$line" == *[[:space:]] ]]; then
        words+=("")
    fi
    cur="${words[${#words[@]} - 1]}"
    prefix="${cur%"${cur##*[=:]}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$prefix"}")
    done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]]; then
        compopt -o nospace
    fi
}
complete -o default -F _migctl migctl

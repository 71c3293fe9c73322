# Completion of `sandkeep` for bash 4.4 and later. What is possible is asked of the command itself; see
# `sandkeep completion --help` for how to install this.

_sandkeep() {
    local kind value
    COMPREPLY=()
    while IFS=$'\t' read -r kind value; do
        case $kind in
            word) COMPREPLY+=("$value") ;;
            part) COMPREPLY+=("$value"); compopt -o nospace ;;
            file) compopt -o default ;;
            directory) compopt -o dirnames ;;
        esac
    done < <(_SANDKEEP_COMPLETE=bash command sandkeep "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}

complete -o nosort -F _sandkeep sandkeep

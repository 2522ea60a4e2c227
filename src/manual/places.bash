# Completes what clap's script above does not know: the names of groups, keys and their values, and
# the command of `run`.
_gpulimit_with_groups() {
    _gpulimit "$@"
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}
    local at key values='' places=0
    [[ $COMP_CWORD -ge 2 ]] || return
    # bash splits KEY=VALUE into three words.
    if [[ $word = '=' || $before = '=' ]]; then
        case $verb in set|create) ;; *) return ;; esac
        key=$before
        [[ $before != '=' ]] || key=${COMP_WORDS[COMP_CWORD-2]}
        [[ $word != '=' ]] || word=''
        case $key in
            @WORDS@
        esac
        COMPREPLY=($(compgen -W "$values" -- "$word"))
        return
    fi
    if [[ $verb = run ]]; then
        # The command of `run` begins at the first word that is neither an option nor its value.
        local end=''
        for ((at = 2; at < COMP_CWORD; at++)); do
            case ${COMP_WORDS[at]} in
                --) end=yes; ((at++)); break ;;
                -*) [[ ! " @VALUES@ " =~ " ${COMP_WORDS[at]} " ]] || ((at++))
                    # bash splits --max=4G into three words.
                    [[ ${COMP_WORDS[at]} != '=' ]] || ((at++)) ;;
                *) break ;;
            esac
        done
        if ((at < COMP_CWORD)) || [[ $at = $COMP_CWORD && ( $end || $word = [!-]* ) ]]; then
            COMPREPLY=()
            if declare -F _command_offset >/dev/null; then
                _command_offset $at
            elif ((at == COMP_CWORD)) && [[ $word != */* ]]; then
                COMPREPLY=($(compgen -c -- "$word"))
            fi
            # Without completions, bash offers the names of files.
            return
        fi
    fi
    if [[ $before = --group ]]; then
        COMPREPLY=($(compgen -W "$(gpulimit show --names 2>/dev/null)" -- "$word"))
        return
    fi
    [[ $word != -* && ! " @VALUES@ " =~ " $before " ]] || return
    for ((at = 2; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
            -*) [[ ! " @VALUES@ " =~ " ${COMP_WORDS[at]} " ]] || ((at++)) ;;
            *) ((places++)) ;;
        esac
    done
    case $verb:$places in
        @GROUPS@)
            COMPREPLY=($(compgen -W "$(gpulimit show --names 2>/dev/null)" -- "$word")) ;;
        create:0|kill:*) COMPREPLY=() ;;
        get:1) COMPREPLY=($(compgen -W "@KEYS@" -- "$word")) ;;
        set:*|create:*)
            compopt -o nospace 2>/dev/null
            COMPREPLY=($(compgen -S = -W "@KEYS@" -- "$word")) ;;
    esac
}
complete -F _gpulimit_with_groups -o bashdefault -o default gpulimit

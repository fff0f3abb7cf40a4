# bash completion of foxserve's programs. It asks the program's own --help at each Tab, whose form is
# FlagSet::Help's: a flag is a line "  --name VALUE  text", a command "  name ARGUMENTS  text".

# _foxserve_help PROGRAM [COMMAND]: prints all flags, or all commands of a program that has some.
_foxserve_help() {
  if [[ "$1" == *fox-server ]]; then
    "$1" --help all 2>/dev/null
  else
    "$@" --help 2>/dev/null
  fi
}

# _foxserve_value FLAG: prints what stands for the flag's value in the help on standard input.
_foxserve_value() {
  awk -v flag="  $1 " 'index($0, flag) == 1 && substr($0, length(flag) + 1, 1) != " " { print $2 }'
}

_foxserve() {
  local word="${COMP_WORDS[COMP_CWORD]}" last="${COMP_WORDS[COMP_CWORD-1]}" help words commands value
  # Bash splits --flag=value into three words, and @FILE into two, but replaces it whole.
  if [[ "$word" == "@" || "$last" == "@" ]]; then
    mapfile -t COMPREPLY < <(compgen -P @ -f -- "${word#@}")
    return
  fi
  if [[ "$word" == "=" ]]; then
    word=""
  elif [[ "$last" == "=" ]]; then
    last="${COMP_WORDS[COMP_CWORD-2]}"
  fi
  help="$(_foxserve_help "${COMP_WORDS[0]}")"
  commands="$(sed -nE 's/^  ([a-z][a-z-]*) .*/\1/p' <<<"$help")"
  if [[ -n "$commands" ]] && ((COMP_CWORD > 1)); then
    help="$(_foxserve_help "${COMP_WORDS[0]}" "${COMP_WORDS[1]}")" commands=""
  fi
  if [[ "$last" == --* ]]; then
    value="$(_foxserve_value "$last" <<<"$help")"
    case "$value" in
      "") ;;  # a switch
      DIR)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
        return
        ;;
      FILE)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
        ;;
      *[A-Z]*) return ;;  # any other text
      *)
        mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$word")
        return
        ;;
    esac
  fi
  words="$(sed -nE 's/^  (--[a-z0-9-]+).*/\1/p' <<<"$help")"
  if [[ "$word" == --no-* ]]; then  # a switch turned off
    words="$(sed -nE 's/^  --([a-z0-9-]+)  .*/--no-\1/p' <<<"$help" | grep -vE -- '-(help|version)$')"
  fi
  if [[ -n "$commands" ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands --help" -- "$word")
  elif [[ "$word" == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  fi
}
complete -F _foxserve fox-server fox-cli fox-eval fox-bench

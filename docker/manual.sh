#!/usr/bin/env bash
# Makes the manual page of a program. help2man reads the --help of the program and of each of its
# commands, and adds the sections of the file INCLUDE: exit status, files, examples.
#
#     manual.sh VERSION INCLUDE PAGE.gz [EMULATOR] PROGRAM
set -euo pipefail

version="$1" include="$2" page="$3"
program="${*: -1}"
started=("${@:4}")  # by an emulator, if it is another processor's

# Prints --help as help2man wants it: it looks for "Usage:", and makes "Options:" a section of all.
asked() {
  "${started[@]}" "$@" | sed -E 's/^usage: /Usage: /; /^Usage: /s/ {3,}.*//; s/^Options:$/Flags:/'
}

scratch="$(mktemp -d)"
trap 'rm -r "$scratch"' EXIT
if [[ "$program" == *fox-server ]]; then
  asked --help all | sed '0,/^[A-Z].*:$/s//*Options*\n\n&/' >"$scratch/text"
else
  asked --help >"$scratch/text"
  for command in $(sed -nE 's/^  ([a-z][a-z-]*) .*/\1/p' "$scratch/text"); do
    printf '\n*%s*\n\n' "$command"
    asked "$command" --help | sed 's/^Usage: \(.*\)/\1\n/'
  done >>"$scratch/text"
fi
# help2man runs a program, and names the page as the program is called.
stand_in="$scratch/${program##*/}"
printf '#!/bin/sh\nexec cat "%s"\n' "$scratch/text" >"$stand_in"
chmod +x "$stand_in"
mkdir -p "$(dirname "$page")"
day="$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%F)"  # help2man writes only the month
help2man --no-info --version-string "$version" --source "foxserve $version" --manual foxserve \
  --include "$include" "$stand_in" |
  sed -E "s/^(\.TH \S+ \"1\") \"[^\"]*\"/\1 \"$day\"/" | gzip -9n >"$page"

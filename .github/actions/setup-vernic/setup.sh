#!/usr/bin/env bash
# What the action does; by hand with the variables that action.yml names.
set -euo pipefail

sh "$SCRIPT"
echo "$VERNIC_PREFIX/bin" >>"$GITHUB_PATH"
if [ -n "${PACKAGES:-}" ]; then
    read -ra packages <<<"$PACKAGES"
    sudo=$(command -v sudo || true)
    $sudo apt-get update -q
    $sudo apt-get install -q -y --no-install-recommends "${packages[@]}"
fi
if [ "${ENVIRONMENT:-false}" = true ]; then
    # Lines `export NAME=value` become lines NAME=value of the runner's file.
    env -i PATH="$PATH" HOME="$HOME" bash -c '
        before=$(env | cut -d= -f1 | sort)
        eval "$("$1/bin/vernic" env)"
        comm -13 <(echo "$before") <(env | cut -d= -f1 | sort) | while read -r name; do
            case $name in _ | SHLVL | PWD) ;; *) echo "$name=${!name}" ;; esac
        done' bash "$VERNIC_PREFIX" >>"$GITHUB_ENV"
fi

#!/bin/sh
# Installs or removes gpulimit @VERSION@: ./install.sh [--prefix DIR] [--uninstall]
#
# Installs the files from this script's folder into DIR. The default is /usr/local for root and
# ~/.local for other users; an installed copy of this script takes the folder that it was installed
# in. The same or another version may be installed over an existing one: files are replaced as a
# whole, and running programs keep the files that they have loaded. --uninstall removes what was
# installed, whatever its version, and removes the library from /etc/ld.so.preload. Run as root, the
# script only works in folders that root owns.
set -euf

version=@VERSION@ arch=@ARCH@
usage='./install.sh [--prefix DIR] [--uninstall]'
die() { echo "install.sh: $*" >&2; exit 1; }
wrong() { echo "install.sh: $* ($usage)" >&2; exit 2; }

prefix='' uninstall=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;;
        --uninstall) uninstall=yes ;;
        --prefix) [ $# -gt 1 ] || wrong "--prefix takes a folder"; prefix=$2; shift ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        *) wrong "unknown: $1" ;;
    esac
    shift
done

umask 022
user=$(id -u)
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "$prefix" ]; then
    if [ -f "$here/installed" ]; then
        prefix=${here%/lib/gpulimit}
    elif [ "$user" = 0 ]; then
        prefix=/usr/local
    else
        prefix=${HOME:?not set: name a folder in --prefix}/.local
    fi
fi
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
prefix=$(printf '%s/\n' "$prefix" | sed 's|/\(\./\)*|/|g; s|//*|/|g; s|/$||')
case $prefix in
    *[[:space:]:]*)
        die "'$prefix' has a space or a colon in it, which separate paths in LD_PRELOAD:" \
            "name another folder in --prefix"
        ;;
    *[][\&\|\;\<\>\(\)\{\}\$\`\\\"\'\*\?\!%#]*)
        die "'$prefix' has a character in it that units and scripts would misread:" \
            "name another folder in --prefix"
        ;;
    '' | /) die "cannot install into / itself: name a folder in --prefix, such as /usr/local" ;;
esac
case $prefix/ in
    */../*) die "'$prefix' has .. in it: name the folder without .. in --prefix" ;;
esac

# trusted PATH [NEXT]: run as root, follows no symbolic link below the prefix, and stops if another
# user could change PATH or a folder above it. PATH need not exist; NEXT is the entry of PATH that
# the script uses.
checked=''
trusted() {
    [ "$user" = 0 ] || return 0
    at=$1 next=${2:-}
    while [ -n "$at" ]; do
        # Paths share their folders: a folder of an entry is checked once, with those above it.
        if [ -n "$next" ]; then
            case $checked in *" $at "*) return ;; esac
            checked="$checked $at "
        fi
        case $at in
            "$prefix"/*)
                [ ! -h "$at" ] || die "$at is a symbolic link:" \
                    "put a folder in its place, or name another one in --prefix"
                ;;
        esac
        if [ -e "$at" ] || [ -h "$at" ]; then
            # For a link, check the link itself, its target, and the folders above the target.
            if [ -h "$at" ] && [ -e "$at" ]; then
                to=$(readlink "$at")
                case $to in /*) ;; *) to=${at%/*}/$to ;; esac
                (trusted "$to" "$next") || exit 1
            fi
            for owner in "$(stat -c %u "$at")" "$(stat -Lc %u "$at" || echo 0)"; do
                [ "$owner" = 0 ] ||
                    die "$at belongs to user $owner, who could lead root elsewhere:" \
                        "run this as that user, or name another folder in --prefix"
            done
            mode=$(stat -Lc %a "$at" || echo 755)
            case $mode in
                # In a sticky folder other users cannot change existing entries.
                1??? | 3??? | 5??? | 7???) [ -z "$next" ] || mode=755 ;;
            esac
            case $mode in
                *[2367] | *[2367]?)
                    die "$at may be written by others:" \
                        "run chmod go-w on it, or name another folder in --prefix"
                    ;;
            esac
            next=$at
        fi
        at=${at%/*}
    done
}
trusted "$prefix"
# inside PATH: stops if a path in the record is not below the prefix. Even with a
# forged record the script only removes files below the prefix.
inside() {
    case /$1/ in
        */../* | */./* | *//*)
            die "the record $record names '$1', which is not below $prefix: nothing is removed"
            ;;
    esac
}

library=$prefix/lib/gpulimit/libgpulimit.so
# The record of an installation: "version V", a line "made FOLDER" for each folder that the script
# has created, and "file PATH" for each file, with a path below the prefix.
record=$prefix/lib/gpulimit/installed
recorded() { [ ! -f "$record" ] || sed -n "s|^$1 ||p" "$record"; }

if [ -n "$uninstall" ]; then
    [ -f "$record" ] || die "found nothing of install.sh in $prefix: name the folder in --prefix"
    [ -w "$prefix/lib/gpulimit" ] || die "cannot write to $prefix: run this script as its owner"
    trusted "$record"
    trusted "$prefix/bin/gpulimit"
    for path in $(recorded file); do
        inside "$path"
        trusted "$prefix/$path"
    done
    for folder in $(recorded made); do
        inside "${folder#/}"
        case $prefix/ in
            "$folder"/*) ;; # above the prefix
            *) case $folder in
                "$prefix"/*) ;;
                *)
                    die "the record $record names '$folder', which is not below $prefix:" \
                        "nothing is removed"
                    ;;
            esac ;;
        esac
    done
    # If /etc/ld.so.preload names a missing library, every program prints an error.
    if grep -qsF "$library" /etc/ld.so.preload; then
        "$prefix/bin/gpulimit" uninstall --library "$library" ||
            die "$library could not be taken out of /etc/ld.so.preload: nothing is removed"
    fi
    there=$(recorded version) files=$(recorded file) made=$(recorded made | sort -r)
    for path in $files; do
        rm -f "$prefix/$path"
    done
    rm -f "$record"
    for folder in $made; do
        rmdir "$folder" 2>/dev/null || true # not empty: it has files of others
    done
    echo "removed gpulimit $there from $prefix"
    exit
fi

[ -f "$here/SHA256SUMS" ] ||
    die "SHA256SUMS is missing beside this script: run it in the folder of the unpacked archive"
system=$(uname -s) machine=$(uname -m)
[ "$system $machine" = "Linux $arch" ] ||
    die "this is for Linux on $arch, and not for $system on $machine: get the archive for that"
(cd "$here" && sha256sum -c SHA256SUMS >/dev/null 2>&1) ||
    die "the files are not those of the archive: unpack it again" \
        "((cd $here && sha256sum -c SHA256SUMS) names the files that differ)"

paths=$(sed 's/^[0-9a-f]* [ *]//' "$here/SHA256SUMS")
trusted "$record"
before=$(recorded file)
for path in $before; do
    inside "$path"
    trusted "$prefix/$path"
done
for path in $paths lib/gpulimit/install.sh; do
    inside "$path"
    trusted "$prefix/$path"
    if [ -e "$prefix/$path" ] && ! printf '%s\n' "$before" | grep -qxF "$path"; then
        die "$prefix/$path is there and was not put there by install.sh:" \
            "remove it first, or name another folder in --prefix"
    fi
done

# Copy all files under temporary names first and try them there, then rename them.
new=.$$.new
drafts='' made=''
clean() {
    for draft in $drafts; do rm -f "$draft"; done
    for folder in $made; do rmdir "$folder" 2>/dev/null || true; done
}
trap clean EXIT
trap 'exit 1' HUP INT TERM

folder() {
    [ -d "$1" ] && return
    folder "${1%/*}"
    mkdir "$1" || die "cannot make $1:" \
        "name a folder that you own in --prefix, or run this as root"
    made="$1 $made"
}
draft() { # FILE PATH MODE
    folder "$prefix/$(dirname "$2")"
    drafts="$drafts $prefix/$2$new"
    cp "$1" "$prefix/$2$new" || die "cannot write to $prefix/$(dirname "$2"):" \
        "name a folder that you own in --prefix, or run this as root"
    chmod "$3" "$prefix/$2$new"
}
folder "$prefix"
for path in $paths; do
    mode=644
    [ ! -x "$here/$path" ] || mode=755
    draft "$here/$path" "$path" "$mode"
    case $path in
        share/gpulimit/config/*)
            sed -i "s|/usr/local/bin/gpulimit|$prefix/bin/gpulimit|g
                s|/usr/local/lib/gpulimit|$prefix/lib/gpulimit|g
                s|/usr/local/share/doc/gpulimit|$prefix/share/doc/gpulimit|g
                s|^PATH=/usr/local/sbin:|PATH=$prefix/bin:/usr/local/sbin:|" "$prefix/$path$new"
            ;;
    esac
done
draft "$0" lib/gpulimit/install.sh 755

own=$("$prefix/bin/gpulimit$new" --version 2>/dev/null) ||
    die "gpulimit does not start on this system: it needs glibc 2.17 or newer" \
        "(not musl, as in Alpine), and a folder from which programs may be run"
said=$(LD_PRELOAD=$library$new LD_BIND_NOW=1 "$prefix/bin/gpulimit$new" --version 2>&1) ||
    said="it ends with status $?"
[ "$said" = "$own" ] ||
    die "programs do not start with the library here: $(printf '%s\n' "$said" | head -n 1)"

# From here on the record lists every file that may exist.
old=$(recorded version)
all=$(printf '%s\n' "$paths" lib/gpulimit/install.sh)
write() { # PATHS
    {
        echo "version $version"
        {
            recorded made
            for folder in $made; do echo "$folder"; done
        } | sort -u | sed 's/^/made /'
        printf '%s\n' "$1" | sed '/^$/d; s/^/file /' | sort -u
    } >"$record$new"
    mv -f "$record$new" "$record"
}
drafts="$drafts $record$new"
write "$before
$all"
for path in $paths lib/gpulimit/install.sh; do
    mv -f "$prefix/$path$new" "$prefix/$path"
done
# Remove the files of an older version that this version does not have.
for path in $before; do
    printf '%s\n' "$all" | grep -qxF "$path" || rm -f "$prefix/$path"
done
write "$all"
trap - EXIT

case $old in
    '') echo "installed gpulimit $version in $prefix" ;;
    "$version")
        echo "installed gpulimit $version anew in $prefix;" \
            "running programs keep the library that they have loaded"
        ;;
    *)
        echo "installed gpulimit $version in $prefix in place of $old;" \
            "running programs keep the library that they have loaded"
        ;;
esac
case :$PATH: in
    *:"$prefix/bin":*) ;;
    *)
        echo "$prefix/bin is not in PATH. Type this here, and for other terminals add it to" \
            "~/.profile and log in again:"
        echo "  export PATH=$prefix/bin:\$PATH"
        ;;
esac
echo "to see what works here, run: gpulimit doctor"
echo "to remove gpulimit, run: $prefix/lib/gpulimit/install.sh --uninstall"

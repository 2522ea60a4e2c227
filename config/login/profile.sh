# shellcheck shell=sh
# For login shells: those of users who have a group, users/NAME, are in it; the others stay as they are. Goes to
# /etc/profile.d/gpulimit.sh; for sh, dash and bash.
if gpulimit_user=$(id -un 2>/dev/null) &&
    [ -r /usr/local/lib/gpulimit/libgpulimit.so ] && [ -z "${GPULIMIT_GROUP:-}" ] &&
    /usr/local/bin/gpulimit get "users/$gpulimit_user" max >/dev/null 2>&1; then
    export GPULIMIT_GROUP="users/$gpulimit_user"
    case ":${LD_PRELOAD:-}:" in
        *:/usr/local/lib/gpulimit/libgpulimit.so:*) ;;
        *) export LD_PRELOAD="/usr/local/lib/gpulimit/libgpulimit.so${LD_PRELOAD:+:$LD_PRELOAD}" ;;
    esac
fi
unset gpulimit_user

# shellcheck shell=sh
# Install as /etc/profile.d/gpulimit.sh. Puts the login shells (sh, dash, bash) of a user whose
# group users/NAME exists into that group, and leaves all other users alone.
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

#!/bin/sh
# A cluster of one node in namespaces of its own:
#     cluster.sh FOLDER REPOSITORY GPULIMIT LIBRARY <COMMANDS
#
# Installs gpulimit by the commands of docs/slurm.md, starts munge, slurmctld and slurmd, and prints
# "ready". Then, for each number N on standard input, runs FOLDER/command.N with its output in
# FOLDER/output.N, and prints the status. All processes end with this one (a pid namespace).
set -eu
folder=$1 repository=$2 gpulimit=$3 library=$4
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
cd "$repository"

# The script does not change the machine: /etc is a copy, the other folders are empty.
cp -a /etc "$folder/etc"
mount --bind "$folder/etc" /etc
for place in /run /usr/local /var/log /var/spool /var/lib; do
    mount -t tmpfs -o mode=755 tmpfs "$place"
done
mkdir -p /run/munge /var/log/munge /var/lib/munge /var/spool/slurmctld /run/lock
rm -f /etc/ld.so.preload /etc/gpulimit/* /etc/slurm/* 2>/dev/null || true
mkdir -p /etc/slurm /etc/munge
for user in alice:41001 bob:41002; do
    echo "${user%:*}:x:${user#*:}:${user#*:}::/tmp:/bin/sh" >>/etc/passwd
    echo "${user%:*}:x:${user#*:}:" >>/etc/group
done
install -D -m 755 "$gpulimit" /usr/local/bin/gpulimit
install -D -m 644 "$library" /usr/local/lib/gpulimit/libgpulimit.so

# Prints the first code block of the page after a line that begins with these words.
block() {
    awk -v after="$1" 'index($0, after) == 1 { wanted = 1 }
        wanted && /^```/ { if (inside) exit; inside = 1; next }
        wanted && inside' docs/slurm.md
}
block '**On each node**' >"$folder/install"
grep -q task-prolog "$folder/install"
command -v systemd-tmpfiles >/dev/null ||
    sed -i 's/^systemd-tmpfiles .*/install -d -m 755 \/run\/gpulimit/' "$folder/install"
# There is no systemd here: this systemctl mounts the file system as its unit says.
cat >/usr/local/bin/systemctl <<'END'
#!/bin/sh
[ "$*" != 'enable --now run-gpulimit.mount' ] || {
    mkdir -p /run/gpulimit
    options=$(sed -n 's/^Options=//p' /etc/systemd/system/run-gpulimit.mount)
    mount -t tmpfs -o "$options" gpulimit /run/gpulimit
}
END
chmod 755 /usr/local/bin/systemctl
sh -eux "$folder/install"
mountpoint -q /run/gpulimit
block '**What a shard is worth**' >>/etc/gpulimit/slurm.conf

dd if=/dev/urandom of=/etc/munge/munge.key bs=64 count=1 2>/dev/null
chmod 400 /etc/munge/munge.key
chown -R root:root /etc/munge /run/munge /var/log/munge /var/lib/munge
chmod 755 /run/munge
munged --force

node=$(hostname -s)
# The name leads to this node without a name server, whatever the network is.
echo "127.0.0.1 $node" >>/etc/hosts
# The test has found free ports.
read -r controller daemon <"$folder/ports"
# slurmd accepts a GPU only with a device file.
for gpu in 0 1; do
    touch "/run/nvidia$gpu"
    mount --bind /dev/null "/run/nvidia$gpu"
    echo "Name=gpu File=/run/nvidia$gpu" >>/etc/slurm/gres.conf
done
echo "Name=shard Count=8" >>/etc/slurm/gres.conf
{
    cat <<END
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$controller
SlurmdPort=$daemon
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,nohold_on_prolog_fail
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
GresTypes=gpu,shard
NodeName=$node NodeAddr=127.0.0.1 CPUs=16 Gres=gpu:2,shard:8
PartitionName=all Nodes=$node Default=YES State=UP
END
    block "**Slurm's own"
} >/etc/slurm/slurm.conf
grep -q ^Epilog= /etc/slurm/slurm.conf
# Older versions use no cgroups unless a plugin needs them; newer ones would ask systemd for some.
case $(slurmd -V) in
    *\ 2[4-9].*) echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf ;;
esac
slurmctld
slurmd
if ! timeout 120 sh -c 'until sinfo -h -o %T | grep -qx idle; do sleep 0.1; done' >&2; then
    cat /var/log/slurmctld.log /var/log/slurmd.log >&2
    exit 1
fi

echo ready
while read -r number; do
    status=0
    sh "$folder/command.$number" >"$folder/output.$number" 2>&1 </dev/null || status=$?
    echo "$status"
done

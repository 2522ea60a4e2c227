//! NVML's process lists, reduced to the group's members, with the driver's own figures.
//!
//! gpulimit fetches the whole list, so the program's buffer needs room for the members only.

use gpulimit_base::identity::{Identity, SeenProcess};

use crate::abi::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_PROCESS_DETAIL_LIST_V1, NvmlDevice, NvmlProcessDetail,
    NvmlProcessDetailList, NvmlProcessV2, Out, SUCCESS, Status,
};
use crate::driver::figures::{self, Listed};
use crate::handler::Call;
use crate::handler::view;

/// Returns the members of the group; `None` without a limit on the device, because the program then
/// sees all processes.
fn members(call: Call, device: NvmlDevice) -> Option<Vec<Identity>> {
    let member = call.process.member().ok()?;
    if view::is_unlimited(call, device) {
        return None;
    }
    // The ledger also lists members that have ended and whose memory the driver still holds.
    let processes = member.ledger().processes(&figures::ProcessList);
    Some(
        processes
            .into_iter()
            .map(|process| process.identity)
            .collect(),
    )
}

/// Fetches the process list, and writes the members' entries to `infos` if all fit into `room`.
/// Returns their number.
fn filter<T: Listed>(
    members: &[Identity],
    fetch: &dyn Fn(Out<u32>, Out<T>) -> Status,
    room: u32,
    infos: Out<T>,
) -> Result<u32, Status> {
    let is_member = |process: &&T| {
        let seen = SeenProcess::by_pid(process.pid_and_bytes().0);
        members.iter().any(|member| seen.is(member))
    };
    let kept: Vec<T> =
        figures::whole_list(fetch, |all| all.iter().filter(is_member).copied().collect())?;
    if kept.len() <= room as usize {
        for (at, process) in kept.iter().enumerate() {
            infos.at(at).write(*process);
        }
    }
    Ok(kept.len() as u32)
}

/// Checks that the program's NVML function accepts the device handle, before gpulimit passes the
/// handle to other functions.
fn accept<T: Listed>(fetch: &dyn Fn(Out<u32>, Out<T>) -> Status) -> Result<(), Status> {
    figures::whole_list(fetch, |_| ())
}

/// Returns NVML's status: success if the list fits into `room`, else an error. Passes the number of
/// entries to `tell`.
fn answer(kept: Result<u32, Status>, room: u32, tell: impl FnOnce(u32)) -> Status {
    match kept {
        Ok(count) => {
            tell(count);
            if count > room {
                NVML_ERROR_INSUFFICIENT_SIZE
            } else {
                SUCCESS
            }
        }
        Err(failed) => failed,
    }
}

/// Lists only the processes of the group that use the GPU, with the driver's own figures.
pub fn list<T: Listed>(
    call: Call,
    real: impl Fn(NvmlDevice, Out<u32>, Out<T>) -> Status,
    device: NvmlDevice,
    count: Out<u32>,
    infos: Out<T>,
) -> Status {
    let room = match count.read() {
        // A call without a buffer gets the driver's own answer, unless it asks only for the number
        // of entries.
        Some(room) if room == 0 || !infos.is_null() => room,
        _ => return real(device, count, infos),
    };
    let fetch = |count, infos| real(device, count, infos);
    if let Err(failed) = accept(&fetch) {
        return failed;
    }
    let Some(members) = members(call, device) else {
        return real(device, count, infos);
    };
    let kept = filter(&members, &fetch, room, infos);
    answer(kept, room, |number| count.write(number))
}

/// Lists only the group's processes that use the GPU. Early R535 drivers use the layout of
/// `NvmlProcessDetail`.
pub fn list_v3(
    call: Call,
    real: impl Fn(NvmlDevice, Out<u32>, Out<NvmlProcessV2>) -> Status,
    device: NvmlDevice,
    count: Out<u32>,
    infos: Out<NvmlProcessV2>,
) -> Status {
    if !figures::is_early_535() {
        return list(call, real, device, count, infos);
    }
    let real = |device, count, infos: Out<NvmlProcessDetail>| real(device, count, infos.cast());
    list(call, real, device, count, infos.cast())
}

/// `nvmlDeviceGetRunningProcessDetailList`: Lists only the processes of the group, with the
/// driver's own figures.
pub fn details(
    call: Call,
    real: impl Fn(NvmlDevice, Out<NvmlProcessDetailList>) -> Status,
    device: NvmlDevice,
    list: Out<NvmlProcessDetailList>,
) -> Status {
    let Some(asked) = list.read().filter(|asked| {
        asked.version == NVML_PROCESS_DETAIL_LIST_V1
            && (asked.count == 0 || !asked.processes.is_null())
    }) else {
        return real(device, list);
    };
    let fetch = |count: Out<u32>, processes| {
        let mut whole = NvmlProcessDetailList {
            count: count.read().unwrap_or(0),
            processes,
            ..asked
        };
        let status = real(device, Out::of(&mut whole));
        count.write(whole.count);
        status
    };
    if let Err(failed) = accept(&fetch) {
        return failed;
    }
    let Some(members) = members(call, device) else {
        return real(device, list);
    };
    let kept = filter(&members, &fetch, asked.count, asked.processes);
    answer(kept, asked.count, |count| {
        list.write(NvmlProcessDetailList { count, ..asked })
    })
}

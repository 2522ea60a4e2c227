// What the server last said, and what follows from it.

/** Identifies a group: names are unique in a root only. */
function groupKey(group) {
  return `${group.root}\u0000${group.name}`;
}

/** Returns the name of the group above, or null. */
function above(name) {
  const end = name.lastIndexOf("/");
  return end > 0 ? name.slice(0, end) : null;
}

/** The server's state, with the groups as a tree. */
export class State {
  constructor(said) {
    this.said = said;
    this.time = new Date(said.time);
    this.isPublic = Boolean(said.public);
    this.machines = Object.entries(said.machines ?? {});
    if (said.machines) nameMachines(said);
    this.gpus = said.gpus;
    this.processes = said.processes;
    this.groups = tree(said.groups);
    this.byKey = new Map(this.groups.map((group) => [group.key, group]));
    const roots = new Set(this.groups.map((group) => group.root));
    this.hasRoots = roots.size > Math.max(1, this.machines.length);
    this.users = usersOfGroups(this.processes);
  }

  /** Returns the groups without a group above. */
  tops() {
    return this.groups.filter((group) => group.depth === 0);
  }

  /** Returns the GPU's entry of a group. */
  static on(group, uuid) {
    return group.gpus.find((gpu) => gpu.uuid === uuid);
  }

  /** Returns the number of processes: a process on several GPUs has an entry for each. */
  processCount() {
    if (!this.isPublic) return new Set(this.processes.map(processKey)).size;
    const counts = this.tops().map((group) => group.processes ?? 0);
    return counts.reduce((sum, one) => sum + one, 0);
  }

  /** Returns the processes that wait for memory; those who wait longest come first. */
  waiters() {
    const waiting = this.processes.filter((process) => process.waits_for);
    return waiting.sort((one, other) => other.waits_for.waited_ms - one.waits_for.waited_ms);
  }

  /** Returns the number of processes that wait. */
  waitingCount() {
    if (!this.isPublic) return new Set(this.waiters().map(processKey)).size;
    const counts = this.tops().flatMap((group) => group.gpus.map((gpu) => gpu.waiting ?? 0));
    return counts.reduce((sum, one) => sum + one, 0);
  }
}

/** Puts the machine before the UUIDs of its GPUs. Processes have no index of a GPU elsewhere. */
function nameMachines(said) {
  const rename = (gpu) => (gpu.uuid = `${gpu.machine}:${gpu.uuid}`);
  said.gpus.forEach(rename);
  for (const group of said.groups) group.gpus.forEach(rename);
  const gpus = new Map(said.gpus.map((gpu) => [gpu.uuid, gpu]));
  for (const process of said.processes) {
    const { machine, gpu } = process;
    if (gpu) process.gpu = gpus.get(rename({ ...gpu, machine })) ?? { ...gpu, machine };
  }
}

/** Identifies a process. A process of another pid namespace has no pid here. */
export function processKey(process) {
  const place = `${process.machine}\u0000${process.group}`;
  return `${place}\u0000${process.pid}\u0000${process.own_pid}\u0000${process.uid}`;
}

/** Identifies a row of processes. */
export function processRow(process) {
  return `${processKey(process)}\u0000${process.gpu?.uuid}`;
}

/** Gives each group its key, its depth, its parent, and the top group that it is in. */
function tree(said) {
  const groups = said.map((group) => ({ ...group, key: groupKey(group) }));
  const known = new Map(groups.map((group) => [group.key, group]));
  for (const group of groups) {
    const name = above(group.name);
    group.parent = name === null ? null : (known.get(groupKey({ ...group, name })) ?? null);
    if (group.parent) (group.parent.below ??= []).push(group);
  }
  const ordered = [];
  const add = (group, depth, top) => {
    group.depth = depth;
    group.top = top ?? group;
    ordered.push(group);
    for (const below of group.below ?? []) add(below, depth + 1, group.top);
  };
  for (const group of groups) if (!group.parent) add(group, 0, null);
  return ordered;
}

/** What the processes of a group do on a GPU: how many drain, and who waits longest. */
function usersOfGroups(processes) {
  const found = new Map();
  for (const process of processes) {
    if (!process.gpu) continue;
    const id = `${process.group}\u0000${process.gpu.uuid}`;
    const known = found.get(id) ?? { draining: 0, waits: null };
    if (process.state === "draining") known.draining += 1;
    const { waits_for: waits } = process;
    if (waits && (known.waits?.waited_ms ?? -1) < waits.waited_ms) known.waits = waits;
    found.set(id, known);
  }
  return found;
}

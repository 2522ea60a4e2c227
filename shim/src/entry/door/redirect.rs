//! Makes symbols and bound pointers of other libraries lead to the functions of `libgpulimit.so`.
//!
//! The dynamic linker can bind a library straight to the driver. So gpulimit changes the driver's
//! symbol table, which is a private mapping of this process. Every lookup then finds the hook.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

/// `ElfW(Dyn)`.
#[repr(C)]
struct Dyn {
    tag: isize,
    value: usize,
}

/// The public first part of the C library's `struct link_map`.
#[repr(C)]
struct LinkMap {
    /// The load address of the library. The linker adds it to every address in the library's file.
    base: usize,
    name: *const libc::c_char,
    dynamic: *const Dyn,
}

const DT_NULL: isize = 0;
const DT_HASH: isize = 4;
const DT_STRTAB: isize = 5;
const DT_SYMTAB: isize = 6;
const DT_RELA: isize = 7;
const DT_RELASZ: isize = 8;
const DT_PLTRELSZ: isize = 2;
const DT_JMPREL: isize = 23;
const DT_GNU_HASH: isize = 0x6fff_fef5;
/// `struct link_map **`.
const RTLD_DI_LINKMAP: libc::c_int = 2;

unsafe extern "C" {
    // The C library has `dlinfo` since GLIBC_2.3.3; the libc crate does not declare it.
    fn dlinfo(handle: *mut c_void, request: libc::c_int, info: *mut c_void) -> libc::c_int;
}

/// A function that maps the address of a function to its new address; `None` if the address stays.
pub type Target<'a> = &'a dyn Fn(*const c_void) -> Option<*const c_void>;

/// Changes the symbols of the library to the addresses from `target`. On failure returns false and
/// changes nothing.
pub fn redirect(handle: *mut c_void, target: Target<'_>) -> bool {
    find(handle).is_some_and(|object| object.redirect(target))
}

fn find(handle: *mut c_void) -> Option<Object> {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: `handle` is the handle of a loaded library, and the request fills in one pointer.
    if unsafe { dlinfo(handle, RTLD_DI_LINKMAP, (&raw mut map).cast()) } != 0 || map.is_null() {
        return None;
    }
    // SAFETY: `map` is the dynamic linker's record of a loaded library.
    unsafe { Object::read((*map).base, (*map).dynamic) }
}

/// The dynamic section of a loaded program or library: its symbols and relocations.
pub struct Object {
    base: usize,
    symbols: *mut libc::Elf64_Sym,
    /// The number of symbols by DT_HASH; 0 without such a table.
    counted: usize,
    /// The GNU hash table; null if the object has none.
    hash: *const u32,
    names: *const libc::c_char,
    /// The address and the bytes of two relocation tables: for data, and for the procedure linkage
    /// table.
    relocations: [(usize, usize); 2],
}

impl Object {
    /// Returns the object that `info` describes; `None` without symbols, or for the vDSO, whose
    /// addresses vary between kernels.
    pub fn of(info: &libc::dl_phdr_info) -> Option<Object> {
        // SAFETY: the call only returns a number.
        let kernels = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        // The program headers of the vDSO lie in the vDSO's first page.
        if (info.dlpi_phdr as usize).wrapping_sub(kernels) < 4096 {
            return None;
        }
        let dynamic = headers(info)
            .iter()
            .find(|header| header.p_type == libc::PT_DYNAMIC)?;
        let base = info.dlpi_addr as usize;
        // SAFETY: the program header gives the address of the dynamic section of this loaded
        // object.
        unsafe {
            Object::read(
                base,
                base.wrapping_add(dynamic.p_vaddr as usize) as *const Dyn,
            )
        }
    }

    /// # Safety
    /// `dynamic` is the dynamic section of an object that is loaded at `base`, and ends with
    /// DT_NULL.
    unsafe fn read(base: usize, mut dynamic: *const Dyn) -> Option<Object> {
        // If the dynamic section is writable, the linker has added the load address to the
        // addresses in it.
        let address = |value: usize| {
            if value < base {
                base.wrapping_add(value)
            } else {
                value
            }
        };
        let mut object = Object {
            base,
            symbols: std::ptr::null_mut(),
            counted: 0,
            hash: std::ptr::null(),
            names: std::ptr::null(),
            relocations: [(0, 0); 2],
        };
        // SAFETY: the caller promises a loaded object's dynamic section with DT_NULL. Its tables
        // are mapped with the object.
        unsafe {
            while (*dynamic).tag != DT_NULL {
                let value = (*dynamic).value;
                match (*dynamic).tag {
                    DT_SYMTAB => object.symbols = address(value) as *mut libc::Elf64_Sym,
                    DT_STRTAB => object.names = address(value) as *const libc::c_char,
                    // The second word of a DT_HASH table is the number of symbols. Some libraries
                    // have only DT_GNU_HASH.
                    DT_HASH => object.counted = *(address(value) as *const u32).add(1) as usize,
                    DT_GNU_HASH => object.hash = address(value) as *const u32,
                    DT_RELA => object.relocations[0].0 = address(value),
                    DT_RELASZ => object.relocations[0].1 = value,
                    DT_JMPREL => object.relocations[1].0 = address(value),
                    DT_PLTRELSZ => object.relocations[1].1 = value,
                    _ => {}
                }
                dynamic = dynamic.add(1);
            }
        }
        (!object.symbols.is_null() && !object.names.is_null()).then_some(object)
    }

    fn count(&self) -> usize {
        match self.counted {
            0 if self.hash.is_null() => 0,
            // SAFETY: this is the DT_GNU_HASH table of a loaded library.
            0 => unsafe { gnu_count(self.hash) },
            counted => counted,
        }
    }

    /// Returns the symbols that this object defines, with their addresses.
    fn defined(&self) -> impl Iterator<Item = (*mut libc::Elf64_Sym, *const c_void)> {
        // SAFETY: `at` is within the symbol table, which stays mapped.
        let symbol = |at| unsafe {
            let symbol = self.symbols.add(at);
            let address = self.base.wrapping_add((*symbol).st_value as usize);
            ((*symbol).st_shndx != 0).then_some((symbol, address as *const c_void))
        };
        (0..self.count()).filter_map(symbol)
    }

    /// Returns the address of the symbol `name` if this object defines it.
    pub fn address_of(&self, name: &CStr) -> Option<*const c_void> {
        let mut defined = self.defined();
        defined.find_map(|(symbol, address)| self.is_named(symbol, name).then_some(address))
    }

    fn is_named(&self, symbol: *const libc::Elf64_Sym, name: &CStr) -> bool {
        // SAFETY: the symbol is in the table. Its name is an offset into the string table, which
        // holds C strings.
        unsafe { CStr::from_ptr(self.names.add((*symbol).st_name as usize)) == name }
    }

    /// Returns whether this object defines a variable of this name.
    pub fn has_variable(&self, name: &CStr) -> bool {
        self.find(name, hash(name)).is_some_and(is_variable)
    }

    /// Returns the address of the function of this name and hash if this object defines it.
    pub fn function(&self, name: &CStr, hash: u32) -> Option<*const c_void> {
        let symbol = self.find(name, hash)?;
        let address = self.base.wrapping_add(symbol.st_value as usize);
        (symbol.st_shndx != 0 && symbol.st_info & 0xf == STT_FUNC).then_some(address as *const _)
    }

    /// Returns the symbol of this name and hash. Mostly reads one word.
    fn find(&self, name: &CStr, hash: u32) -> Option<&libc::Elf64_Sym> {
        if self.hash.is_null() {
            return None;
        }
        // SAFETY: a DT_GNU_HASH table has four words, the Bloom filter, the buckets with the first
        // symbol of each, and a chain of hashes for each bucket, whose last one has bit 0. It
        // stays mapped.
        unsafe {
            let (buckets, offset) = (*self.hash, *self.hash.add(1));
            let (words, shift) = (*self.hash.add(2), *self.hash.add(3));
            if buckets == 0 || words == 0 {
                return None;
            }
            let filter = self.hash.add(4).cast::<u64>();
            let bits = 1_u64 << (hash % 64) | 1 << (hash.wrapping_shr(shift) % 64);
            if *filter.add((hash / 64 % words) as usize) & bits != bits {
                return None;
            }
            let first = self.hash.add(4 + 2 * words as usize);
            let chains = first.add(buckets as usize);
            let mut at = *first.add((hash % buckets) as usize);
            while at >= offset {
                let (found, symbol) = (
                    *chains.add((at - offset) as usize),
                    self.symbols.add(at as usize),
                );
                if found | 1 == hash | 1 && self.is_named(symbol, name) {
                    return Some(&*symbol);
                }
                if found & 1 != 0 {
                    break;
                }
                at += 1;
            }
        }
        None
    }

    /// Changes the symbols of this object to the addresses from `target`. On failure returns false
    /// and changes nothing.
    pub fn redirect(&self, target: Target<'_>) -> bool {
        if !self.defined().any(|(_, address)| target(address).is_some()) {
            return true;
        }
        let start = self.symbols as usize / page() * page();
        let end = self.symbols as usize + self.count() * size_of::<libc::Elf64_Sym>();
        let executable = protection_of(start).map_or(0, |flags| flags & libc::PROT_EXEC);
        let protect = |write| {
            // SAFETY: these pages belong to the mapping of a library that stays loaded. Only their
            // write permission changes.
            unsafe {
                libc::mprotect(
                    start as *mut c_void,
                    end.next_multiple_of(page()) - start,
                    libc::PROT_READ | write | executable,
                ) == 0
            }
        };
        if !protect(libc::PROT_WRITE) {
            return false;
        }
        for (symbol, address) in self.defined() {
            if let Some(target) = target(address) {
                // SAFETY: the symbol is in the table, whose pages are writable now. The linker
                // reads the address as one word.
                unsafe { (*symbol).st_value = (target as usize).wrapping_sub(self.base) as u64 }
            }
        }
        protect(0)
    }

    /// Replaces the bound pointers of this object by the addresses from `target`, also in pages
    /// made read-only (RELRO).
    pub fn rebind(&self, info: &libc::dl_phdr_info, target: Target<'_>) {
        self.change_pointers(info, |_, bound| target(bound));
    }

    /// Binds this object to its own variables, where it was bound to functions of the same names.
    pub fn keep_variables(
        &self,
        info: &libc::dl_phdr_info,
        is_function: impl Fn(*const c_void) -> bool,
    ) {
        self.change_pointers(info, |entry, bound| {
            // SAFETY: the upper half is the number of a symbol in the table, which stays mapped.
            let symbol = unsafe { &*self.symbols.add((entry.info >> 32) as usize) };
            let own = self.base.wrapping_add(symbol.st_value as usize);
            (is_variable(symbol) && is_function(bound)).then_some(own as *const c_void)
        });
    }

    fn change_pointers(
        &self,
        info: &libc::dl_phdr_info,
        target: impl Fn(&Relocation, *const c_void) -> Option<*const c_void>,
    ) {
        for (table, bytes) in self.relocations {
            for at in 0..bytes / size_of::<Relocation>() {
                // SAFETY: `at` is within the relocation table, which stays mapped.
                let entry = unsafe { &*(table as *const Relocation).add(at) };
                let slot = self.base.wrapping_add(entry.offset);
                let writable = || segment(info, slot).is_some_and(|flags| flags & libc::PF_W != 0);
                if !POINTERS.contains(&(entry.info as u32)) || !writable() {
                    continue;
                }
                let place = slot as *mut *const c_void;
                // SAFETY: `slot` is a relocated word of the object, in a writable segment of it.
                let Some(target) = target(entry, unsafe { place.read_unaligned() }) else {
                    continue;
                };
                let sealed = sealed(info, slot);
                let protect = |write| {
                    // SAFETY: the word's page belongs to a loaded object. Only its write permission
                    // changes.
                    unsafe {
                        libc::mprotect(
                            (slot / page() * page()) as *mut c_void,
                            page(),
                            libc::PROT_READ | write,
                        ) == 0
                    }
                };
                if !sealed || protect(libc::PROT_WRITE) {
                    // SAFETY: `place` is a word of the object in a page that is writable now.
                    unsafe { place.write_unaligned(target) };
                }
                if sealed {
                    protect(0);
                }
            }
        }
    }
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;

/// Returns the hash of a symbol's name in DT_GNU_HASH tables.
pub const fn hash(name: &CStr) -> u32 {
    let (mut hash, mut at, name) = (5381_u32, 0, name.to_bytes());
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

fn is_variable(symbol: &libc::Elf64_Sym) -> bool {
    symbol.st_shndx != 0 && symbol.st_info & 0xf == STT_OBJECT
}

/// The types of relocations that put the address of a symbol into a word of memory.
#[cfg(target_arch = "x86_64")]
const POINTERS: [u32; 3] = [1, 6, 7];
#[cfg(target_arch = "aarch64")]
const POINTERS: [u32; 3] = [257, 1025, 1026];

/// Calls `look` for each loaded object, in load order, until it returns true. `look` must not panic
/// or load libraries.
pub fn any_object(mut look: &mut dyn FnMut(&libc::dl_phdr_info) -> bool) -> bool {
    unsafe extern "C" fn step(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: `dl_iterate_phdr` passes the headers of an object, and the `look` that it was
        // given.
        let (info, look) = unsafe {
            (
                &*info,
                &mut *data.cast::<&mut dyn FnMut(&libc::dl_phdr_info) -> bool>(),
            )
        };
        libc::c_int::from(look(info))
    }
    // SAFETY: `step` gets a pointer to `look`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(step), (&raw mut look).cast()) != 0 }
}

/// Returns whether the name of the object's file begins with one of these texts.
pub fn has_name(info: &libc::dl_phdr_info, texts: &[&[u8]]) -> bool {
    // SAFETY: the dynamic linker names each object by a C string, if at all.
    let path = (!info.dlpi_name.is_null()).then(|| unsafe { CStr::from_ptr(info.dlpi_name) });
    let path = path.unwrap_or_default().to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    texts.iter().any(|text| name.starts_with(text))
}

fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    // SAFETY: the linker says how many headers the object has.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

fn page() -> usize {
    // SAFETY: the call only returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Returns the number of symbols of a library, read from its GNU hash table.
///
/// # Safety
/// `hash` is the DT_GNU_HASH table of a loaded library.
unsafe fn gnu_count(hash: *const u32) -> usize {
    // SAFETY: the caller promises a DT_GNU_HASH table: four words, Bloom filter, buckets, hash
    // chains. Bit 0 ends a chain.
    unsafe {
        let (buckets, offset, bloom) = (*hash, *hash.add(1), *hash.add(2));
        let first = hash.add(4 + 2 * bloom as usize);
        let chains = first.add(buckets as usize);
        let Some(mut last) = (0..buckets as usize).map(|at| *first.add(at)).max() else {
            return 0;
        };
        if last < offset {
            return offset as usize;
        }
        while *chains.add((last - offset) as usize) & 1 == 0 {
            last += 1;
        }
        last as usize + 1
    }
}

/// Returns the flags of the segment of the object `info` that holds `address`; `None` if no segment
/// does.
pub fn segment(info: &libc::dl_phdr_info, address: usize) -> Option<u32> {
    let holds = |header: &&libc::Elf64_Phdr| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        header.p_type == libc::PT_LOAD && address.wrapping_sub(start) < header.p_memsz as usize
    };
    Some(headers(info).iter().find(holds)?.p_flags)
}

/// Returns whether the dynamic linker made the whole page of `address` read-only after relocation
/// (RELRO).
fn sealed(info: &libc::dl_phdr_info, address: usize) -> bool {
    headers(info).iter().any(|header| {
        let start = info.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        let end = start.wrapping_add(header.p_memsz as usize);
        header.p_type == libc::PT_GNU_RELRO
            && (start / page()..end / page()).contains(&(address / page()))
    })
}

/// Returns the permissions of the segment that holds `address`, as `PROT_` flags.
fn protection_of(address: usize) -> Option<libc::c_int> {
    let mut found = None;
    any_object(&mut |info| {
        found = segment(info, address);
        found.is_some()
    });
    let flags = found?;
    let flag = |bit, protection| {
        if flags & bit != 0 { protection } else { 0 }
    };
    Some(
        flag(libc::PF_R, libc::PROT_READ)
            | flag(libc::PF_W, libc::PROT_WRITE)
            | flag(libc::PF_X, libc::PROT_EXEC),
    )
}

//! Modules, libraries, functions and launches.
//!
//! Of an image only what takes memory is read, and only from PTX text: `.global` variables, and per `.entry` the
//! `.local` memory. Other images load as empty modules in which every function exists.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulimit_sim::context::{self, Context};
use gpulimit_sim::driver::driver;
use gpulimit_sim::stream::Stream;
use gpulimit_sim::{Outcome, Status, blocks};

use crate::context::here;
use gpulimit_sim::abi::{In, Out, Text};

struct Module {
    context: &'static Context,
    /// Context when loaded: memory of a context that went and came back is gone.
    generation: u64,
    globals: HashMap<String, (u64, u64)>,
    start: u64,
    locals: HashMap<String, u64>,
    named: bool,
}

#[derive(Clone, Copy)]
struct Function {
    module: usize,
    local: u64,
}

#[derive(Default)]
struct State {
    modules: HashMap<usize, Module>,
    functions: HashMap<usize, Function>,
    last: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<State>> =
        STATE.lock().unwrap_or_else(PoisonError::into_inner);
    work(guard.get_or_insert_default())
}

impl State {
    /// A number that looks like an address, for a handle.
    fn number(&mut self) -> usize {
        self.last += 16;
        0x5100_0000_0000 + self.last
    }
}

/// What an image holds.
#[derive(Default)]
struct Image {
    globals: HashMap<String, (u64, u64)>,
    bytes: u64,
    locals: HashMap<String, u64>,
    text: bool,
}

/// `.global .align 4 .b8 name[1024];` → name and bytes.
fn variable(statement: &str) -> Option<(String, u64)> {
    let statement = statement
        .split('=')
        .next()?
        .trim()
        .trim_end_matches(';')
        .trim();
    let width = statement.split_whitespace().find_map(|word| {
        let digits = word.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?;
        Some(digits.parse::<u64>().ok()? / 8)
    })?;
    let last = statement.split_whitespace().last()?;
    match last.split_once('[') {
        Some((name, rest)) => {
            let count = rest.split(']').next()?.trim().parse::<u64>().ok()?;
            Some((name.to_owned(), width * count))
        }
        None => Some((last.to_owned(), width)),
    }
}

fn read(image: &[u8]) -> Image {
    let Ok(text) = std::str::from_utf8(image) else {
        return Image::default();
    };
    if !text.contains(".version") {
        return Image::default();
    }
    let mut found = Image {
        text: true,
        ..Image::default()
    };
    let mut entry = None;
    for line in text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default().trim())
    {
        if let Some((_, rest)) = line.split_once(".entry") {
            let name: String = rest
                .trim()
                .chars()
                .take_while(|c| c.is_alphanumeric() || "_$".contains(*c))
                .collect();
            found.locals.insert(name.clone(), 0);
            entry = Some(name);
        } else if line.contains(".global") && !line.starts_with("ld") && !line.starts_with("st") {
            if let Some((name, bytes)) = variable(line) {
                found.globals.insert(name, (found.bytes, bytes));
                found.bytes += bytes.next_multiple_of(256);
            }
        } else if line.starts_with(".local")
            && let (Some(name), Some((_, bytes))) = (&entry, variable(line))
        {
            *found.locals.entry(name.clone()).or_default() += bytes;
        }
    }
    found
}

fn make(out: Out<usize>, image: &[u8]) -> Outcome<()> {
    let context = here()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let image = read(image);
    let start = if image.bytes > 0 {
        blocks::allocate_module(context, image.bytes)?
    } else {
        0
    };
    let module = Module {
        context,
        generation: context.id(),
        globals: image.globals,
        start,
        locals: image.locals,
        named: image.text,
    };
    out.put(with(|state| {
        let handle = state.number();
        state.modules.insert(handle, module);
        handle
    }))
}

/// Only text can be read without knowing its length.
pub fn load(out: Out<usize>, image: Text) -> Outcome<()> {
    if image.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let binary = matches!(
        image.field::<[u8; 4]>(0).get()?,
        [0x7f, b'E', b'L', b'F'] | [0x50, 0xed, 0x55, 0xba]
    ) || image.field::<u32>(0).get()? == 0x4662_43b1;
    make(out, if binary { &[] } else { image.bytes()? })
}

pub fn load_with_options(
    out: Out<usize>,
    image: Text,
    _count: u32,
    _options: In<i32>,
    _values: In<usize>,
) -> Outcome<()> {
    load(out, image)
}

pub fn load_file(out: Out<usize>, file: Text) -> Outcome<()> {
    here()?;
    make(
        out,
        &std::fs::read(file.str()?).map_err(|_| Status::FILE_NOT_FOUND)?,
    )
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn load_library(
    out: Out<usize>,
    code: Text,
    _options: In<i32>,
    _values: In<usize>,
    _count: u32,
    _library_options: In<i32>,
    _library_values: In<usize>,
    _library_count: u32,
) -> Outcome<()> {
    load(out, code)
}

pub fn unload(handle: usize) -> Outcome<()> {
    driver()?;
    let module = with(|state| {
        state
            .functions
            .retain(|_, function| function.module != handle);
        state.modules.remove(&handle)
    });
    let module = module.ok_or(Status::INVALID_HANDLE)?;
    if module.start != 0 && module.context.is_active() && module.context.id() == module.generation {
        blocks::free_module(module.start)?;
    }
    Ok(())
}

pub fn function(out: Out<usize>, module: usize, name: Text) -> Outcome<()> {
    driver()?;
    let name = name.str()?;
    let handle = with(|state| {
        let found = state.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
        let local = match found.locals.get(name) {
            Some(local) => *local,
            None if found.named => return Err(Status::NOT_FOUND),
            None => 0,
        };
        let handle = state.number();
        state.functions.insert(handle, Function { module, local });
        Ok(handle)
    })?;
    out.put(handle)
}

pub fn global(dptr: Out<u64>, bytes: Out<usize>, module: usize, name: Text) -> Outcome<()> {
    driver()?;
    let name = name.str()?;
    let (start, (offset, size)) = with(|state| {
        let found = state.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
        Ok((
            found.start,
            *found.globals.get(name).ok_or(Status::NOT_FOUND)?,
        ))
    })?;
    dptr.put_if(start + offset);
    bytes.put_if(size as usize);
    Ok(())
}

/// Lazy, as the real driver's default is.
pub fn loading_mode(mode: Out<i32>) -> Outcome<()> {
    mode.put(2)
}

pub fn module_of(out: Out<usize>, library: usize) -> Outcome<()> {
    driver()?;
    if with(|state| state.modules.contains_key(&library)) {
        out.put(library)
    } else {
        Err(Status::INVALID_HANDLE)
    }
}

fn known(function: usize) -> Outcome<Function> {
    driver()?;
    with(|state| state.functions.get(&function).copied()).ok_or(Status::INVALID_HANDLE)
}

pub fn kernel_function(out: Out<usize>, kernel: usize) -> Outcome<()> {
    known(kernel)?;
    out.put(kernel)
}

pub fn function_module(out: Out<usize>, function: usize) -> Outcome<()> {
    out.put(known(function)?.module)
}

pub fn load_function(function: usize) -> Outcome<()> {
    known(function).map(drop)
}

pub fn function_attribute(value: Out<i32>, attribute: i32, function: usize) -> Outcome<()> {
    let function = known(function)?;
    value.put(match attribute {
        0 => 1024,
        1 | 2 | 7 | 10..=15 => 0,
        3 => function.local as i32,
        4 => 32,
        5 | 6 => 90,
        8 => 49_152,
        9 => -1,
        _ => return Err(Status::INVALID_VALUE),
    })
}

pub fn set_function_attribute(function: usize, _attribute: i32, _value: i32) -> Outcome<()> {
    known(function).map(drop)
}

pub fn set_cache_config(function: usize, _config: i32) -> Outcome<()> {
    known(function).map(drop)
}

fn start(function: usize, stream: usize) -> Outcome<()> {
    let function = known(function)?;
    match Stream::from_handle(stream)? {
        Some(stream) if stream.is_capturing() => Ok(()),
        Some(stream) => stream.context.launch(function.local),
        None => context::current()?.launch(function.local),
    }
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn launch(
    function: usize,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    _shared: u32,
    stream: usize,
    _params: usize,
    _extra: usize,
    _twin: bool,
) -> Outcome<()> {
    if [gx, gy, gz, bx, by, bz].contains(&0) {
        return Err(Status::INVALID_VALUE);
    }
    start(function, stream)
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn launch_cooperative(
    function: usize,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: usize,
    params: usize,
    twin: bool,
) -> Outcome<()> {
    launch(
        function, gx, gy, gz, bx, by, bz, shared, stream, params, 0, twin,
    )
}

/// `CUlaunchConfig` has seven 32-bit numbers before the stream.
pub fn launch_ex(
    config: In<u8>,
    function: usize,
    _params: usize,
    _extra: usize,
    _twin: bool,
) -> Outcome<()> {
    start(function, config.field(32).get()?)
}

pub fn occupancy(count: Out<i32>, function: usize, threads: i32, shared: usize) -> Outcome<()> {
    occupancy_with_flags(count, function, threads, shared, 0)
}

pub fn occupancy_with_flags(
    count: Out<i32>,
    function: usize,
    threads: i32,
    _shared: usize,
    _flags: u32,
) -> Outcome<()> {
    known(function)?;
    count.put(if threads > 0 { 2048 / threads } else { 0 })
}

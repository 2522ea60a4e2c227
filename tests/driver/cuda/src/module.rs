//! The driver's functions for modules, libraries, kernels and launches.
//!
//! The simulated driver reads only what takes memory from a code image:
//! - in PTX text: the `.global` variables;
//! - in each `.entry` of PTX text: the `.local` memory, the length, and uses of `malloc`, `printf`
//!   and `assert`;
//! - in machine code: only the variables. Any function name is accepted.
//!
//! Managed variables take addresses but no GPU memory.
//!
//! Measured (H100, 580.159.04): loading a module takes the memory of its variables at once.
//!
//! A library is loaded lazily, unless `CUDA_MODULE_LOADING` is `EAGER`. These uses load its module:
//! - `cuKernelGetFunction`, `cuLibraryGetGlobal`, `cuLibraryGetModule`;
//! - `cuKernelSetAttribute`, `cuKernelSetCacheConfig`, `cuKernelGetParamInfo`, any `cuOccupancy*`;
//! - adding a kernel to a graph, and launching a kernel.
//!
//! Code is loaded lazily, too. Two kernels of 60,000 stores took no memory in `cuModuleLoadData`.
//! They took 20 MiB after `cuModuleGetFunction`.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use gpulimit_sim::context::{self, Context, Needs};
use gpulimit_sim::driver::driver;
use gpulimit_sim::graph::Need;
use gpulimit_sim::machine::BLOCK;
use gpulimit_sim::stream::Stream;
use gpulimit_sim::work::{self, Name};
use gpulimit_sim::{Outcome, Status, blocks, capture};

use crate::binary::{self, Code};
use crate::context::here;
use crate::device;
use crate::stream::implicit;
use gpulimit_sim::abi::{In, Out, Text, fatal};

struct Module {
    context: &'static Context,
    /// The id of the context when the module was loaded. Another id now means that the context was
    /// destroyed.
    generation: u64,
    image: Arc<Image>,
    start: u64,
    /// The address of the module's managed variables; 0 if the module has none.
    managed: u64,
    /// The address of the module's code; 0 before the code is loaded.
    code: u64,
    /// The functions of the module that the program has looked up: names with handles.
    functions: HashMap<String, usize>,
}

impl Module {
    fn lives(&self) -> bool {
        self.context.is_active() && self.context.id() == self.generation
    }
}

struct Library {
    image: Arc<Image>,
    /// The handle of the library's module in each context, by the context's index.
    modules: HashMap<usize, usize>,
    kernels: HashMap<String, usize>,
}

#[derive(Clone, Copy)]
struct Function {
    /// The handle of the function's module. For a kernel (`CUkernel`), the handle of its library.
    owner: usize,
    kernel: bool,
    local: u64,
    needs: Needs,
    /// Whether the function's code is so long that it takes memory of its own.
    long: bool,
}

#[derive(Default)]
struct State {
    modules: HashMap<usize, Module>,
    libraries: HashMap<usize, Library>,
    functions: HashMap<usize, Function>,
    last: usize,
    /// The handles of removed functions. New functions can reuse these handles.
    free: Vec<usize>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Every handle is larger than this number.
const NUMBERS: usize = 0x5100_0000_0000;

impl State {
    /// Returns a new handle, a number that looks like an address.
    fn number(&mut self) -> usize {
        self.last += 16;
        NUMBERS + self.last
    }

    /// Returns whether the driver ever gave out this handle.
    fn was(&self, handle: usize) -> bool {
        (1..=self.last).contains(&handle.wrapping_sub(NUMBERS))
    }

    /// Returns a handle for a new function. With `GPULIMIT_SIM_REUSE` set, prefers the handle of a
    /// removed function.
    fn function_number(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| self.number())
    }

    /// Removes all functions for which `gone` is true.
    fn forget_functions(&mut self, gone: impl Fn(&Function) -> bool) {
        static REUSE: LazyLock<bool> =
            LazyLock::new(|| std::env::var_os("GPULIMIT_SIM_REUSE").is_some());
        let free = self.functions.extract_if(|_, function| gone(function));
        let free = free.map(|(handle, _)| handle);
        if *REUSE {
            self.free.extend(free);
        } else {
            free.for_each(drop);
        }
    }
}

/// A variable of a module: its kind, its size, and its offset among the variables of this kind.
#[derive(Clone, Copy)]
struct Variable {
    is_managed: bool,
    at: u64,
    bytes: u64,
}

/// The content of an image.
#[derive(Default)]
struct Image {
    globals: HashMap<String, Variable>,
    bytes: u64,
    /// Total bytes of the image's managed variables.
    managed: u64,
    locals: HashMap<String, u64>,
    needs: Needs,
    /// Bytes of code.
    code: u64,
    text: bool,
}

/// Bytes of code per store instruction in the PTX text. Measured: 120,000 stores took 20 MiB.
const PER_STORE: u64 = 174;

/// Returns name and bytes of a variable from its PTX statement, for example `.global .align 4 .b8
/// name[1024][0x10];`.
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
    let (front, dimensions) = match statement.split_once('[') {
        Some((front, rest)) => (front, rest),
        None => (statement, ""),
    };
    let name = front.split_whitespace().last()?;
    let count = |dimension: &str| {
        let number = dimension.trim().trim_end_matches(']').trim();
        match number.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => number.parse::<u64>().ok(),
        }
    };
    dimensions
        .split('[')
        .filter(|dimension| !dimension.is_empty())
        .try_fold(width, |bytes, dimension| {
            bytes.checked_mul(count(dimension)?)
        })
        .map(|bytes| (name.to_owned(), bytes))
}

/// Returns PTX text without its comments.
fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut found = String::new();
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        let (front, comment) = rest.split_at(at);
        found += front;
        let (end, length) = match comment.starts_with("//") {
            true => ("\n", 0),
            false => ("*/", 2),
        };
        rest = comment.get(2..).unwrap_or_default();
        rest = rest.find(end).map_or("", |at| &rest[at + length..]);
    }
    found + rest
}

fn open(image: &[u8]) -> Outcome<Image> {
    Ok(match binary::code(image)? {
        Code::Text(text) => read(text.split(|byte| *byte == 0).next().unwrap_or_default()),
        Code::Machine { bytes, managed } => Image {
            bytes,
            managed,
            ..Image::default()
        },
    })
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
    for line in without_comments(text).lines().map(str::trim) {
        if line.starts_with(".extern") {
            found.needs.heap |= line.contains(" malloc");
            found.needs.printf |= line.contains(" vprintf");
            found.needs.assert |= line.contains(" __assertfail");
        } else if let Some((_, rest)) = line.split_once(".entry") {
            let name: String = rest
                .trim()
                .chars()
                .take_while(|c| c.is_alphanumeric() || "_$".contains(*c))
                .collect();
            found.locals.insert(name.clone(), 0);
            entry = Some(name);
        } else if line.contains(".global") && !line.starts_with("ld") && !line.starts_with("st") {
            let is_managed = line.contains(".managed");
            if let Some((name, bytes)) = variable(line) {
                let sum = match is_managed {
                    true => &mut found.managed,
                    false => &mut found.bytes,
                };
                let variable = Variable {
                    is_managed,
                    at: *sum,
                    bytes,
                };
                *sum += bytes.next_multiple_of(256);
                found.globals.insert(name, variable);
            }
        } else if line.starts_with("st.") {
            found.code += PER_STORE;
        } else if line.starts_with(".local")
            && let (Some(name), Some((_, bytes))) = (&entry, variable(line))
        {
            *found.locals.entry(name.clone()).or_default() += bytes;
        }
    }
    found
}

impl Image {
    /// Returns the bytes of local memory per thread that a function of the image needs.
    fn local(&self, name: &str) -> Outcome<u64> {
        match self.locals.get(name) {
            Some(local) => Ok(*local),
            None if self.text => Err(Status::NOT_FOUND),
            None => Ok(0),
        }
    }

    fn function(&self, owner: usize, kernel: bool, name: &str) -> Outcome<Function> {
        Ok(Function {
            owner,
            kernel,
            // Measured: the driver reports and takes 1,104 bytes of local memory for a function
            // with 1,100 bytes.
            local: self.local(name)?.next_multiple_of(16),
            needs: self.needs,
            long: self.code >= BLOCK,
        })
    }
}

/// Loads a code image as a module of a context.
fn place(image: Arc<Image>, context: &'static Context) -> Outcome<usize> {
    let start = if image.bytes > 0 {
        blocks::allocate_module(context, image.bytes)?
    } else {
        0
    };
    if let Err(status) = context.load(image.needs) {
        if start != 0 {
            blocks::free_module(start)?;
        }
        return Err(status);
    }
    let managed = match image.managed {
        0 => 0,
        bytes => blocks::allocate_managed(context, bytes)?,
    };
    let module = Module {
        context,
        generation: context.id(),
        image,
        start,
        managed,
        code: 0,
        functions: HashMap::new(),
    };
    Ok(with(|state| {
        let handle = state.number();
        state.modules.insert(handle, module);
        handle
    }))
}

fn make(out: Out<usize>, image: &[u8]) -> Outcome<()> {
    let context = here()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    out.put(place(Arc::new(open(image)?), context)?)
}

pub fn load(out: Out<usize>, code: Text) -> Outcome<()> {
    make(out, &binary::behind(code)?)
}

pub fn load_with_options(
    out: Out<usize>,
    code: Text,
    _count: u32,
    _options: In<i32>,
    _values: In<usize>,
) -> Outcome<()> {
    load(out, code)
}

fn file(name: Text) -> Outcome<Vec<u8>> {
    std::fs::read(name.str()?).map_err(|_| Status::FILE_NOT_FOUND)
}

pub fn load_file(out: Out<usize>, name: Text) -> Outcome<()> {
    here()?;
    make(out, &file(name)?)
}

/// Returns whether `CUDA_MODULE_LOADING` asks for eager loading of modules. If the variable is not
/// set, the driver loads modules lazily.
fn is_eager() -> bool {
    static EAGER: OnceLock<bool> = OnceLock::new();
    *EAGER.get_or_init(|| std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER"))
}

/// Loads a library. The driver also accepts this call when no context is current.
fn make_library(out: Out<usize>, image: &[u8]) -> Outcome<()> {
    driver()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let library = Library {
        image: Arc::new(open(image)?),
        modules: HashMap::new(),
        kernels: HashMap::new(),
    };
    let handle = with(|state| {
        let handle = state.number();
        state.libraries.insert(handle, library);
        handle
    });
    if is_eager() && context::current().is_ok() {
        module_of(handle).inspect_err(|_| {
            with(|state| state.libraries.remove(&handle));
        })?;
    }
    out.put(handle)
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
    make_library(out, &binary::behind(code)?)
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
pub fn load_library_file(
    out: Out<usize>,
    name: Text,
    _options: In<i32>,
    _values: In<usize>,
    _count: u32,
    _library_options: In<i32>,
    _library_values: In<usize>,
    _library_count: u32,
) -> Outcome<()> {
    make_library(out, &file(name)?)
}

/// Returns the library's module in the current context. Loads the module first if it is not loaded
/// yet.
fn module_of(library: usize) -> Outcome<usize> {
    module_in(library, here()?)
}

fn module_in(library: usize, context: &'static Context) -> Outcome<usize> {
    static LOADING: Mutex<()> = Mutex::new(());
    let look = || {
        with(|state| {
            let found = state.libraries.get(&library);
            let found = found.ok_or_else(|| no_library(library))?;
            let module = found.modules.get(&context.index).copied();
            let lives = |module: &usize| state.modules.get(module).is_some_and(Module::lives);
            Ok((module.filter(lives), Arc::clone(&found.image)))
        })
    };
    if let (Some(module), _) = look()? {
        return Ok(module);
    }
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let (None, image) = look()? else {
        return look()?.0.ok_or(Status::INVALID_HANDLE);
    };
    let module = place(image, context)?;
    with(|state| {
        if let Some(found) = state.libraries.get_mut(&library) {
            found.modules.insert(context.index, module);
        }
    });
    Ok(module)
}

pub fn library_module(out: Out<usize>, library: usize) -> Outcome<()> {
    out.put(module_of(library)?)
}

pub fn library_global(
    dptr: Out<u64>,
    bytes: Out<usize>,
    library: usize,
    name: Text,
) -> Outcome<()> {
    global(dptr, bytes, module_of(library)?, name)
}

pub fn library_kernel(out: Out<usize>, library: usize, name: Text) -> Outcome<()> {
    driver()?;
    let name = name.str()?;
    out.put(with(|state| state.kernel(library, name))?)
}

/// Returns the error code for a handle that is not a library, and marks a handle other than NULL as
/// [`fatal`].
fn no_library(handle: usize) -> Status {
    match handle {
        0 => Status::INVALID_HANDLE,
        _ => fatal(Status::INVALID_HANDLE),
    }
}

fn names(state: &State, library: usize) -> Outcome<Vec<String>> {
    let found = state.libraries.get(&library);
    let found = found.ok_or(Status::INVALID_HANDLE)?;
    Ok(found.image.locals.keys().cloned().collect())
}

/// Writes the handles of a library's kernels. Writes nothing, without an error, if `library` is not
/// a library (measured, H200).
pub fn kernels(list: Out<usize>, count: u32, library: usize) -> Outcome<()> {
    driver()?;
    if library != 0 && !with(|state| state.libraries.contains_key(&library)) {
        return Ok(());
    }
    let names = with(|state| names(state, library))?;
    for (index, name) in names.iter().take(count as usize).enumerate() {
        list.at(index)
            .put(with(|state| state.kernel(library, name))?)?;
    }
    Ok(())
}

/// Writes the number of a library's kernels. Crashes for a wrong handle other than NULL (measured,
/// H200).
pub fn kernel_count(count: Out<u32>, library: usize) -> Outcome<()> {
    driver()?;
    let names = with(|state| names(state, library)).map_err(|error| match library {
        0 => error,
        _ => fatal(error),
    })?;
    count.put(names.len() as u32)
}

pub fn unload_library(library: usize) -> Outcome<()> {
    driver()?;
    let gone = with(|state| {
        state.forget_functions(|function| function.kernel && function.owner == library);
        state.libraries.remove(&library)
    });
    let gone = gone.ok_or_else(|| no_library(library))?;
    for module in gone.modules.into_values() {
        unplace(module)?;
    }
    Ok(())
}

pub fn unload(handle: usize) -> Outcome<()> {
    driver()?;
    capture::unsafe_call()?;
    unplace(handle)
}

fn unplace(handle: usize) -> Outcome<()> {
    let module = with(|state| {
        state.forget_functions(|function| !function.kernel && function.owner == handle);
        state.modules.remove(&handle)
    });
    let module = module.ok_or(Status::INVALID_HANDLE)?;
    if module.managed != 0 && module.lives() {
        blocks::free(module.managed, Name::LEGACY)?;
    }
    for part in [module.start, module.code] {
        if part != 0 && module.lives() {
            blocks::free_module(part)?;
        }
    }
    Ok(())
}

/// Loads the code of a module. Code that is smaller than a block fits into memory that the context
/// already has.
fn load_code(handle: usize) -> Outcome<()> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = with(|state| {
        let module = state.modules.get(&handle).ok_or(Status::INVALID_HANDLE)?;
        let missing = module.code == 0 && module.image.code >= BLOCK;
        Ok(missing.then(|| (module.context, module.image.code)))
    })?;
    if let Some((context, bytes)) = missing {
        let code = blocks::allocate_module(context, bytes)?;
        with(|state| {
            if let Some(module) = state.modules.get_mut(&handle) {
                module.code = code;
            }
        });
    }
    Ok(())
}

impl State {
    /// Finds a function of a module or a kernel of a library by its name, and returns its handle.
    fn named(&mut self, owner: usize, kernel: bool, name: &str) -> Outcome<usize> {
        let last = self.function_number();
        let found = match kernel {
            true => {
                let library = self.libraries.get_mut(&owner);
                library.map(|library| (&library.image, &mut library.kernels))
            }
            false => {
                let module = self.modules.get_mut(&owner);
                module.map(|module| (&module.image, &mut module.functions))
            }
        };
        let (image, handles) = found.ok_or(Status::INVALID_HANDLE)?;
        let function = image.function(owner, kernel, name)?;
        let handle = *handles.entry(name.to_owned()).or_insert(last);
        if handle != last {
            self.free.push(last);
        }
        self.functions.insert(handle, function);
        Ok(handle)
    }

    fn function(&mut self, module: usize, name: &str) -> Outcome<usize> {
        self.named(module, false, name)
    }

    fn kernel(&mut self, library: usize, name: &str) -> Outcome<usize> {
        self.named(library, true, name)
    }
}

pub fn function(out: Out<usize>, module: usize, name: Text) -> Outcome<()> {
    driver()?;
    let name = name.str()?;
    let function = with(|state| state.function(module, name))?;
    load_code(module)?;
    out.put(function)
}

/// Lists the functions of a module, without loading their code (NVIDIA's documentation).
pub fn functions(list: Out<usize>, count: u32, module: usize) -> Outcome<()> {
    driver()?;
    let found = with(|state| {
        let image = &state
            .modules
            .get(&module)
            .ok_or(Status::INVALID_HANDLE)?
            .image;
        let names: Vec<String> = image.locals.keys().take(count as usize).cloned().collect();
        let handles = names.iter().map(|name| state.function(module, name));
        handles.collect::<Outcome<Vec<usize>>>()
    })?;
    for (index, function) in found.into_iter().enumerate() {
        list.at(index).put(function)?;
    }
    Ok(())
}

pub fn function_count(count: Out<u32>, module: usize) -> Outcome<()> {
    driver()?;
    count.put(with(|state| {
        let found = state.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
        Ok(found.image.locals.len() as u32)
    })?)
}

pub fn global(dptr: Out<u64>, bytes: Out<usize>, module: usize, name: Text) -> Outcome<()> {
    driver()?;
    let name = name.str()?;
    let (start, variable) = with(|state| {
        let found = state.modules.get(&module).ok_or(Status::INVALID_HANDLE)?;
        let variable = *found.image.globals.get(name).ok_or(Status::NOT_FOUND)?;
        let start = match variable.is_managed {
            true => found.managed,
            false => found.start,
        };
        Ok((start, variable))
    })?;
    dptr.put_if(start + variable.at);
    bytes.put_if(variable.bytes as usize);
    Ok(())
}

pub fn loading_mode(mode: Out<i32>) -> Outcome<()> {
    mode.put(if is_eager() { 1 } else { 2 })
}

fn known(function: usize) -> Outcome<Function> {
    driver()?;
    with(|state| match state.functions.get(&function) {
        Some(known) => Ok(*known),
        None if state.was(function) => Err(fatal(Status::INVALID_HANDLE)),
        None => Err(Status::INVALID_HANDLE),
    })
}

impl Function {
    fn need(self) -> Need {
        Need {
            local: self.local,
            heap: self.needs.heap,
        }
    }
}

/// Returns the memory that a function needs. Fails with error 400 for a kernel's handle (measured).
pub fn function_need(function: usize) -> Outcome<Need> {
    Ok(function_of(function)?.need())
}

/// Returns the memory that a kernel needs, and loads the kernel's library.
pub fn kernel_need(kernel: usize) -> Outcome<Need> {
    let found = kernel_of(kernel)?;
    place_kernel(found)?;
    Ok(found.need())
}

/// Returns the function's handle and the memory for its launch, for a graph node. Loads the code
/// (measured).
pub fn function_node(function: usize) -> Outcome<(usize, Need)> {
    let found = function_of(function)?;
    load_code(found.owner)?;
    Ok((function, found.need()))
}

/// Returns the handle and the launch memory of a kernel's function. Graph nodes store this handle,
/// not the kernel's (measured).
pub fn kernel_node(kernel: usize, context: &'static Context) -> Outcome<(usize, Need)> {
    let need = kernel_of(kernel)?.need();
    Ok((function_in(kernel, context)?, need))
}

pub fn kernel_function(out: Out<usize>, kernel: usize) -> Outcome<()> {
    out.put(function_in(kernel, here()?)?)
}

fn function_in(kernel: usize, context: &'static Context) -> Outcome<usize> {
    let Function { owner, .. } = kernel_of(kernel)?;
    let module = module_in(owner, context)?;
    load_code(module)?;
    with(|state| {
        let found = state.libraries.get(&owner).ok_or(Status::INVALID_HANDLE)?;
        let name = found.kernels.iter().find(|(_, handle)| **handle == kernel);
        let name = name.ok_or(Status::INVALID_HANDLE)?.0.clone();
        state.function(module, &name)
    })
}

pub fn kernel_library(out: Out<usize>, kernel: usize) -> Outcome<()> {
    out.put(kernel_of(kernel)?.owner)
}

fn kernel_of(kernel: usize) -> Outcome<Function> {
    match known(kernel)? {
        kernel if kernel.kernel => Ok(kernel),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn function_of(function: usize) -> Outcome<Function> {
    match known(function)? {
        function if !function.kernel => Ok(function),
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub fn function_module(out: Out<usize>, function: usize) -> Outcome<()> {
    out.put(function_of(function)?.owner)
}

/// Loads the code of a function. Fails with error 400 for the handle of a kernel (measured).
pub fn load_function(function: usize) -> Outcome<()> {
    load_code(function_of(function)?.owner)
}

/// Writes an attribute of a function. Fails with error 400 for a kernel's handle (measured).
pub fn function_attribute(value: Out<i32>, attribute: i32, function: usize) -> Outcome<()> {
    put_attribute(value, attribute, function_of(function)?)
}

/// Writes an attribute of a kernel. Loads no code. Fails for the handle of a function (measured).
pub fn kernel_attribute(
    value: Out<i32>,
    attribute: i32,
    kernel: usize,
    ordinal: i32,
) -> Outcome<()> {
    device::index(ordinal)?;
    put_attribute(value, attribute, kernel_of(kernel)?)
}

fn put_attribute(value: Out<i32>, attribute: i32, function: Function) -> Outcome<()> {
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

/// Accepts any attribute. Loads the function's code if it is not loaded yet (measured).
pub fn set_function_attribute(function: usize, _attribute: i32, _value: i32) -> Outcome<()> {
    load_function(function)
}

/// Accepts any configuration. Loads the function's code if it is not loaded yet (measured).
pub fn set_function_config(function: usize, _config: i32) -> Outcome<()> {
    load_function(function)
}

/// Loads the kernel's library in every existing context of the GPU, but not in later contexts
/// (measured).
pub fn set_kernel_attribute(
    _attribute: i32,
    _value: i32,
    kernel: usize,
    ordinal: i32,
) -> Outcome<()> {
    let device = device::index(ordinal)?;
    let kernel = kernel_of(kernel)?;
    let holds = |context: &&'static Context| {
        context.device() == device && context.is_active() && std::ptr::eq(context.base(), *context)
    };
    for context in context::all().into_iter().filter(holds) {
        load_code(module_in(kernel.owner, context)?)?;
    }
    Ok(())
}

/// Checks the cache configuration. Then loads the kernel's library in every existing context of the
/// GPU (measured).
pub fn set_kernel_cache_config(kernel: usize, config: i32, ordinal: i32) -> Outcome<()> {
    if !(0..=3).contains(&config) {
        return Err(Status::INVALID_VALUE);
    }
    set_kernel_attribute(0, 0, kernel, ordinal)
}

/// Writes the offset and size of a kernel's parameter. Loads the library even for an invalid index
/// (measured).
pub fn param_info(
    kernel: usize,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Outcome<()> {
    place_kernel(kernel_of(kernel)?)?;
    if index > 0 {
        return Err(Status::INVALID_VALUE);
    }
    size.put_if(8);
    offset.put(0)
}

/// Writes the number of a kernel's parameters. Also loads the kernel's library (not measured).
pub fn param_count(kernel: usize, count: Out<usize>) -> Outcome<()> {
    place_kernel(kernel_of(kernel)?)?;
    count.put(1)
}

#[cold]
fn place_kernel(kernel: Function) -> Outcome<()> {
    load_code(module_of(kernel.owner)?)
}

fn start(number: usize, handle: usize, twin: bool) -> Outcome<()> {
    let function = known(number)?;
    match function.kernel {
        true => place_kernel(function)?,
        false if function.long => load_code(function.owner)?,
        false => {}
    }
    let context = match Stream::from_handle(handle)? {
        Some(stream) if stream.captures()? => {
            capture::add_kernel(stream, number, function.need());
            return Ok(());
        }
        Some(stream) => stream.context,
        None => implicit(context::current()?, handle, twin)?,
    };
    context.launch(function.local, function.needs)?;
    work::launch(Name { handle, twin })?;
    Ok(())
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
    twin: bool,
) -> Outcome<()> {
    if [gx, gy, gz, bx, by, bz].contains(&0) {
        return Err(Status::INVALID_VALUE);
    }
    start(function, stream, twin)
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

/// Launches a kernel. Reads the stream from a `CUlaunchConfig`, after seven 32-bit numbers.
pub fn launch_ex(
    config: In<u8>,
    function: usize,
    _params: usize,
    _extra: usize,
    twin: bool,
) -> Outcome<()> {
    start(function, config.field(32).get()?, twin)
}

/// Launches kernels on different GPUs (NVIDIA's documentation). Each element has the function at
/// offset 0 and the stream at offset 40.
pub fn launch_multi_device(list: In<[u64; 7]>, count: u32, _flags: u32) -> Outcome<()> {
    driver()?;
    if count == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let mut gpus = HashSet::new();
    for index in 0..count as usize {
        let [_, .., stream, _] = list.at(index).get()?;
        if !gpus.insert(Stream::context_of(stream as usize)?.device()) {
            return Err(Status::INVALID_VALUE);
        }
    }
    for index in 0..count as usize {
        let [function, .., stream, _] = list.at(index).get()?;
        start(function as usize, stream as usize, false)?;
    }
    Ok(())
}

pub fn launch_one(function: usize) -> Outcome<()> {
    start(function, 0, false)
}

pub fn launch_grid(function: usize, width: i32, height: i32) -> Outcome<()> {
    launch_grid_async(function, width, height, 0)
}

pub fn launch_grid_async(function: usize, width: i32, height: i32, stream: usize) -> Outcome<()> {
    if width < 1 || height < 1 {
        return Err(Status::INVALID_VALUE);
    }
    start(function, stream, false)
}

/// Returns how many thread blocks fit on a multiprocessor.
///
/// Measured: a NULL result pointer is rejected before code is loaded, an invalid block size after.
fn fits<T>(place: Out<T>, function: usize, threads: i32) -> Outcome<i32> {
    here()?;
    let found = known(function)?;
    if place.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    match found.kernel {
        true => place_kernel(found)?,
        false => load_code(found.owner)?,
    }
    match threads {
        1.. => Ok(2048 / threads),
        _ => Err(Status::INVALID_VALUE),
    }
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
    count.put(fits(count, function, threads)?)
}

pub fn block_size(
    grid: Out<i32>,
    block: Out<i32>,
    function: usize,
    _shared_of: usize,
    _shared: usize,
    _limit: i32,
) -> Outcome<()> {
    block.put(1024)?;
    grid.put(132 * fits(grid, function, 1024)?)
}

pub fn block_size_with_flags(
    grid: Out<i32>,
    block: Out<i32>,
    function: usize,
    shared_of: usize,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> Outcome<()> {
    block_size(grid, block, function, shared_of, shared, limit)
}

pub fn dynamic_shared(
    bytes: Out<usize>,
    function: usize,
    _blocks: i32,
    threads: i32,
) -> Outcome<()> {
    fits(bytes, function, threads)?;
    bytes.put(49_152)
}

pub fn cluster_size(size: Out<i32>, function: usize, _config: In<u8>) -> Outcome<()> {
    fits(size, function, 1)?;
    size.put(8)
}

pub fn active_clusters(count: Out<i32>, function: usize, _config: In<u8>) -> Outcome<()> {
    fits(count, function, 1)?;
    count.put(132)
}

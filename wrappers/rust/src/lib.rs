//! Runs standalone models of edgetune, which are shared libraries with the C API of `edgetune.h`.
//!
//! ```no_run
//! let model = edgetune::Model::load("classifier")?;
//! let mut instance = edgetune::Instance::new(&model, 2)?;
//! instance.input_mut::<f32>(0)?.fill(0.5);
//! instance.run()?;
//! println!("{:?}", instance.output::<f32>(0)?);
//! # Ok::<(), edgetune::Error>(())
//! ```
//!
//! A [`Model`] may be shared by threads; an [`Instance`] belongs to one at a time and keeps its model.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs, mem, ptr, slice};

const API_VERSION: i32 = 1;
const ERROR_ARGUMENT: i32 = 1;
const ERROR_FILE: i32 = 3;
const ERROR_DAMAGED: i32 = 4;
const ERROR_MACHINE: i32 = 5;
const RTLD_NOW: c_int = 2;

extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}

/// What failed: the `edgetune_status`, and one sentence that says what to do.
#[derive(Debug, Clone)]
pub struct Error {
    pub status: i32,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

/// An input or output: dense, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<i64>,
    pub size_bytes: usize,
    dtype: c_int,
}

/// A type that a tensor may hold.
///
/// # Safety
/// `DTYPE` is its `edgetune_dtype`, and any bytes are a value of it.
pub unsafe trait Element: Copy {
    const DTYPE: i32;
}

macro_rules! elements {
    ($($type:ty = $number:expr),*) => { $(unsafe impl Element for $type { const DTYPE: i32 = $number; })* };
}
elements!(i8 = 1, i16 = 2, i32 = 3, i64 = 4, u8 = 5, u16 = 6, u32 = 7, u64 = 8, f32 = 10, f64 = 11);

#[repr(C)]
struct RawError {
    status: c_int,
    message: [c_char; 256],
}

#[repr(C)]
struct RawTensor {
    name: *const c_char,
    dtype: c_int,
    rank: i32,
    shape: *const i64,
    size_bytes: usize,
}

#[repr(C)]
struct RawOptions {
    threads: i32,
    spin_us: i32,
    cores: *const i32,
    num_cores: i32,
}

/// Of a library by its path, what the system's loader does not say: of one for another machine it may say that there is
/// no such file, and one that was cut short may end the process. Other files and names are left to it.
fn check_file(path: &Path) -> Result<()> {
    use std::io::Read;
    let mut header = Vec::new();
    let Ok(file) = fs::File::open(path) else { return Ok(()) };
    let size = file.metadata().map_or(0, |found| found.len());
    if file.take(64).read_to_end(&mut header).is_err() || header.len() < 20 || !header.starts_with(b"\x7fELF") {
        return Ok(());
    }
    // The header of an ELF file: at 4 whether it is of 64 bits, at 18 the machine, and where the table of sections is,
    // which comes last: its start, the size of an entry, and how many there are.
    let number = |at: usize, bytes: usize| header[at..at + bytes].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let machine = match number(18, 2) {
        62 => "x86_64",
        183 => "aarch64",
        40 => "arm",
        243 => "riscv64",
        _ => "other",
    };
    if machine != std::env::consts::ARCH {
        let message = format!("{} was compiled for {machine} machines, this is another; compile it for this machine", path.display());
        return Err(Error { status: ERROR_MACHINE, message });
    }
    let (start, bytes, halves) = if header[4] == 2 { (0x28, 8, 0x3a) } else { (0x20, 4, 0x2e) };
    let whole = header.len() == 64
        && number(start, bytes).checked_add(number(halves, 2) * number(halves + 2, 2)).is_some_and(|end| end <= size);
    if whole {
        return Ok(());
    }
    Err(Error { status: ERROR_DAMAGED, message: format!("{} was cut short, it has {size} bytes; copy it again", path.display()) })
}

macro_rules! api {
    ($($name:ident: fn($($type:ty),*) -> $result:ty),* $(,)?) => {
        struct Api { handle: *mut c_void, $($name: unsafe extern "C" fn($($type),*) -> $result),* }

        impl Api {
            fn load(path: &Path) -> Result<Api> {
                check_file(path)?;
                let text = c_string(path)?;
                // SAFETY: the path is terminated; a library without constructors runs no code here.
                let handle = unsafe { dlopen(text.as_ptr(), RTLD_NOW) };
                if handle.is_null() {
                    let reason = unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy().into_owned();
                    let message = if reason.contains("TVMFFI") {
                        format!(
                            "{} has no C API, since it is for a GPU or for a TVM of your own; load it with Python's edgetune.load, \
                             or compile it for a CPU",
                            path.display()
                        )
                    } else {
                        format!("cannot load a model: {reason}; check the path, or copy the bundle again")
                    };
                    return Err(Error { status: ERROR_FILE, message });
                }
                $(
                    let name = concat!("edgetune_", stringify!($name), "\0");
                    let $name = unsafe { dlsym(handle, name.as_ptr().cast()) };
                    if $name.is_null() {
                        unsafe { dlclose(handle) };
                        return Err(Error {
                            status: ERROR_FILE,
                            message: format!(
                                "{} is no edgetune model for apps (it has no function edgetune_{}); give the model.so of a bundle for a CPU",
                                path.display(),
                                stringify!($name)
                            ),
                        });
                    }
                )*
                // SAFETY: the types are those of edgetune.h, whose version is compared next.
                let api = Api { handle, $($name: unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>($name) }),* };
                if unsafe { (api.api_version)() } != API_VERSION {
                    return Err(Error { status: ERROR_FILE, message: format!("{} has another version of the C API; build the bundle again", path.display()) });
                }
                Ok(api)
            }
        }
    };
}

api! {
    api_version: fn() -> i32,
    open: fn(*const c_char, u32, *mut *mut c_void, *mut RawError) -> c_int,
    close: fn(*mut c_void) -> (),
    model_name: fn(*const c_void) -> *const c_char,
    num_inputs: fn(*const c_void) -> i32,
    num_outputs: fn(*const c_void) -> i32,
    input_info: fn(*const c_void, i32) -> *const RawTensor,
    output_info: fn(*const c_void, i32) -> *const RawTensor,
    create: fn(*mut c_void, *const RawOptions, *mut *mut c_void, *mut RawError) -> c_int,
    free: fn(*mut c_void) -> (),
    input: fn(*mut c_void, i32) -> *mut c_void,
    output: fn(*mut c_void, i32) -> *const c_void,
    run: fn(*mut c_void) -> c_int,
    last_error: fn(*const c_void) -> *const c_char,
}

impl Drop for Api {
    fn drop(&mut self) {
        // SAFETY: models and instances hold the Api, so that none is left.
        unsafe { dlclose(self.handle) };
    }
}

struct Shared {
    model: *mut c_void,
    api: Api,
}

// SAFETY: edgetune.h: functions of a model may be called from any thread.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        unsafe { (self.api.close)(self.model) };
    }
}

/// A loaded model; clones share it.
#[derive(Clone)]
pub struct Model(Arc<Shared>);

impl Model {
    /// The model of a bundle's folder; of several bundles in one, the best that this CPU can run.
    pub fn load(folder: impl AsRef<Path>) -> Result<Model> {
        let folder = folder.as_ref();
        let list = fs::read_to_string(folder.join("variants")).unwrap_or("model.so weights.bin".into());
        let mut last = Error { status: ERROR_FILE, message: format!("{} names no models", folder.display()) };
        for line in list.lines() {
            let Some((library, weights)) = line.split_once(' ') else { continue };
            match Model::load_library(folder.join(library), Some(&folder.join(weights))) {
                // What is damaged is no reason to run something slower: only a wrong machine is.
                Err(error) if error.status == ERROR_MACHINE || error.status == ERROR_FILE => last = error,
                result => return result,
            }
        }
        Err(last)
    }

    /// A library by its path, or by a name that the system finds; no weights where they are embedded.
    pub fn load_library(library: impl AsRef<Path>, weights: Option<&Path>) -> Result<Model> {
        let api = Api::load(library.as_ref())?;
        let path = weights.map(c_string).transpose()?;
        let mut model = ptr::null_mut();
        let mut error = RawError { status: 0, message: [0; 256] };
        let given = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: all pointers are valid for the call.
        let status = unsafe { (api.open)(given, 0, &mut model, &mut error) };
        check(status, &error)?;
        Ok(Model(Arc::new(Shared { model, api })))
    }

    pub fn name(&self) -> String {
        // SAFETY: the model is open, and its name lives as long.
        text(unsafe { (self.0.api.model_name)(self.0.model) })
    }

    pub fn inputs(&self) -> Vec<Tensor> {
        let count = unsafe { (self.0.api.num_inputs)(self.0.model) };
        (0..count).map(|i| tensor(unsafe { &*(self.0.api.input_info)(self.0.model, i) })).collect()
    }

    pub fn outputs(&self) -> Vec<Tensor> {
        let count = unsafe { (self.0.api.num_outputs)(self.0.model) };
        (0..count).map(|i| tensor(unsafe { &*(self.0.api.output_info)(self.0.model, i) })).collect()
    }
}

/// Memory and threads to run a model with.
pub struct Instance {
    instance: *mut c_void,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    model: Model,
}

// SAFETY: edgetune.h: an instance is used by one thread at a time, whichever it is.
unsafe impl Send for Instance {}

impl Instance {
    /// Threads: 0 for what the model was compiled for.
    pub fn new(model: &Model, threads: i32) -> Result<Instance> {
        let options = RawOptions { threads, spin_us: 0, cores: ptr::null(), num_cores: 0 };
        let mut instance = ptr::null_mut();
        let mut error = RawError { status: 0, message: [0; 256] };
        // SAFETY: all pointers are valid for the call.
        let status = unsafe { (model.0.api.create)(model.0.model, &options, &mut instance, &mut error) };
        check(status, &error)?;
        Ok(Instance { instance, inputs: model.inputs(), outputs: model.outputs(), model: model.clone() })
    }

    /// The memory of an input, to write to.
    pub fn input_mut<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        let count = elements::<T>(&self.inputs, index)?;
        // SAFETY: it is that large, aligned to 64 bytes, initialised, and borrowed with the instance.
        Ok(unsafe { slice::from_raw_parts_mut((self.model.0.api.input)(self.instance, index as i32).cast(), count) })
    }

    /// The values of an output of the last run.
    pub fn output<T: Element>(&self, index: usize) -> Result<&[T]> {
        let count = elements::<T>(&self.outputs, index)?;
        // SAFETY: as above.
        Ok(unsafe { slice::from_raw_parts((self.model.0.api.output)(self.instance, index as i32).cast(), count) })
    }

    pub fn run(&mut self) -> Result<()> {
        // SAFETY: the instance is alive, and borrowed exclusively.
        match unsafe { (self.model.0.api.run)(self.instance) } {
            0 => Ok(()),
            status => Err(Error { status, message: text(unsafe { (self.model.0.api.last_error)(self.instance) }) }),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        unsafe { (self.model.0.api.free)(self.instance) };
    }
}

fn elements<T: Element>(tensors: &[Tensor], index: usize) -> Result<usize> {
    match tensors.get(index) {
        Some(tensor) if tensor.dtype == T::DTYPE => Ok(tensor.size_bytes / mem::size_of::<T>()),
        Some(tensor) => Err(Error { status: ERROR_ARGUMENT, message: format!("{} holds values of another type", tensor.name) }),
        None => Err(Error { status: ERROR_ARGUMENT, message: "the model has no tensor of this index".into() }),
    }
}

fn tensor(raw: &RawTensor) -> Tensor {
    // SAFETY: rank says how long the shape is, which is null where there is none.
    let shape = if raw.rank == 0 { vec![] } else { unsafe { slice::from_raw_parts(raw.shape, raw.rank as usize) }.to_vec() };
    Tensor { name: text(raw.name), shape, size_bytes: raw.size_bytes, dtype: raw.dtype }
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: the library's texts are terminated.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| Error { status: ERROR_ARGUMENT, message: format!("{} is no path", path.display()) })
}

fn check(status: c_int, error: &RawError) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error { status, message: text(error.message.as_ptr()) }) }
}

//! What the example uses of `flashlift/flashlift.h` and `dlpack/dlpack.h`, written down by hand, and a safe layer over it.
//! Structures begin with their size, so that what is declared here stays right when the library learns new fields.
use std::ffi::{c_void, CStr, CString};
use std::os::raw::c_char; // std::ffi has it from Rust 1.64 on, and Debian 12 has 1.63
use std::{mem, ptr};

mod c {
    use super::{c_char, c_void};

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Device {
        pub device_type: i32,
        pub device_id: i32,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct DataType {
        pub code: u8,
        pub bits: u8,
        pub lanes: u16,
    }

    #[repr(C)]
    pub struct Tensor {
        pub data: *mut c_void,
        pub device: Device,
        pub ndim: i32,
        pub dtype: DataType,
        pub shape: *const i64,
        pub strides: *const i64,
        pub byte_offset: u64,
    }

    #[repr(C)]
    pub struct Arguments {
        pub struct_size: usize,
        pub q: *const Tensor,
        pub k: *const Tensor,
        pub v: *const Tensor,
        pub out: *const Tensor,
        pub captures: *const *const Tensor,
        pub capture_count: usize,
        pub sinks: *const Tensor,
        pub lse: *const Tensor,
    }

    pub enum Attention {}
    pub enum Error {}

    #[link(name = "flashlift")]
    extern "C" {
        pub fn flashlift_error_message(error: *const Error) -> *const c_char;
        pub fn flashlift_error_destroy(error: *mut Error);
        pub fn flashlift_attention_compile(
            problem: *const c_char,
            options: *const c_void,
            attention: *mut *mut Attention,
        ) -> *mut Error;
        pub fn flashlift_attention_destroy(attention: *mut Attention);
        pub fn flashlift_attention_implementation(attention: *const Attention) -> *const c_char;
        pub fn flashlift_attention_run(
            attention: *const Attention,
            arguments: *const Arguments,
            options: *const c_void,
        ) -> *mut Error;
    }
}

fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn check(error: *mut c::Error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    let message = text(unsafe { c::flashlift_error_message(error) });
    unsafe { c::flashlift_error_destroy(error) };
    Err(message)
}

/// A dense f32 tensor on the CPU.
pub struct Tensor {
    pub values: Vec<f32>,
    shape: Vec<i64>,
}

impl Tensor {
    pub fn new(shape: &[i64], value: impl FnMut() -> f32) -> Tensor {
        let size = shape.iter().product::<i64>() as usize;
        Tensor { values: std::iter::repeat_with(value).take(size).collect(), shape: shape.to_vec() }
    }

    fn view(&self, data: *const f32) -> c::Tensor {
        const CPU: i32 = 1;
        const FLOAT: u8 = 2;
        c::Tensor {
            data: data as *mut c_void,
            device: c::Device { device_type: CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: c::DataType { code: FLOAT, bits: 32, lanes: 1 },
            shape: self.shape.as_ptr(),
            strides: ptr::null(),
            byte_offset: 0,
        }
    }

    fn read(&self) -> c::Tensor {
        self.view(self.values.as_ptr())
    }

    fn written(&mut self) -> c::Tensor {
        let data = self.values.as_mut_ptr();
        self.view(data)
    }
}

/// A compiled problem. Many threads may run it at once.
pub struct Attention(*mut c::Attention);

unsafe impl Send for Attention {}
unsafe impl Sync for Attention {}

impl Attention {
    pub fn compile(problem: &str) -> Result<Attention, String> {
        let problem = CString::new(problem).map_err(|_| "a problem has no zero byte".to_string())?;
        let mut attention = ptr::null_mut();
        check(unsafe { c::flashlift_attention_compile(problem.as_ptr(), ptr::null(), &mut attention) })?;
        Ok(Attention(attention))
    }

    pub fn implementation(&self) -> String {
        text(unsafe { c::flashlift_attention_implementation(self.0) })
    }

    /// The library checks shapes and dtypes, and writes nothing where one is wrong.
    pub fn run(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        captures: &[&Tensor],
        out: &mut Tensor,
    ) -> Result<(), String> {
        let (q, k, v, out) = (q.read(), k.read(), v.read(), out.written());
        let captures: Vec<c::Tensor> = captures.iter().map(|one| one.read()).collect();
        let captures: Vec<*const c::Tensor> = captures.iter().map(|one| one as *const _).collect();
        let arguments = c::Arguments {
            struct_size: mem::size_of::<c::Arguments>(),
            q: &q,
            k: &k,
            v: &v,
            out: &out,
            captures: captures.as_ptr(),
            capture_count: captures.len(),
            sinks: ptr::null(),
            lse: ptr::null(),
        };
        check(unsafe { c::flashlift_attention_run(self.0, &arguments, ptr::null()) })
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        unsafe { c::flashlift_attention_destroy(self.0) }
    }
}

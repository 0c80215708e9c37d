//! Device memory.

#![expect(unsafe_code, reason = "addresses owned by this guard cross the C interface")]

use std::{ffi::c_void, ptr};

use super::Context;
use crate::{
    result::{Error, Result, acl},
    sys::{AclrtMemMallocPolicy, AclrtMemcpyKind},
};

/// Memory of a device, freed when dropped. Its content is arbitrary until written.
///
/// Whoever enqueues work on its address must keep it until the stream has passed that work.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    /// Invariants: (1) device memory of `len` bytes, or null when `len` is 0. (2) Only `drop` frees it.
    ptr: *mut c_void,
    len: usize,
}

impl DeviceMemory {
    /// Takes memory, from huge pages where there are any. No bytes take none.
    ///
    /// # Errors
    /// When the device has too little left, or the library lacks the call.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        context.enter()?;
        let ptr = if bytes == 0 {
            ptr::null_mut()
        } else {
            acl::malloc(context.libraries(), bytes, AclrtMemMallocPolicy::HUGE_FIRST)?
        };
        Ok(Self { context: context.clone(), ptr, len: bytes })
    }

    /// The address on the device, null when there are no bytes. Not readable by the host.
    #[must_use]
    pub fn as_ptr(&self) -> *mut c_void {
        self.ptr
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes host bytes from `offset` on, and returns once they are there.
    ///
    /// # Errors
    /// When they do not fit or the copy fails.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let Some(place) = self.place(offset, bytes.len())? else { return Ok(()) };
        let (room, src) = (self.len - offset, bytes.as_ptr().cast());
        let kind = AclrtMemcpyKind::HOST_TO_DEVICE;
        // SAFETY: by (1) and `place` there is room for the bytes, which are readable; the call returns when done.
        unsafe { acl::memcpy(self.context.libraries(), place, room, src, bytes.len(), kind) }
    }

    /// Reads bytes from `offset` on into host memory.
    ///
    /// # Errors
    /// When there are not so many or the copy fails.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let Some(place) = self.place(offset, bytes.len())? else { return Ok(()) };
        let (room, dst) = (bytes.len(), bytes.as_mut_ptr().cast());
        let kind = AclrtMemcpyKind::DEVICE_TO_HOST;
        // SAFETY: by (1) and `place` the bytes are there, and the host memory has room; the call returns when done.
        unsafe { acl::memcpy(self.context.libraries(), dst, room, place, room, kind) }
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        let Some(place) = self.place(0, self.len)? else { return Ok(()) };
        // SAFETY: by (1) there are `len` bytes; the call returns when done.
        unsafe { acl::memset(self.context.libraries(), place, self.len, i32::from(byte), self.len) }
    }

    /// The address of `count` bytes from `offset` on, `None` when none are asked for.
    fn place(&self, offset: usize, count: usize) -> Result<Option<*mut c_void>> {
        if offset.checked_add(count).is_none_or(|end| end > self.len) {
            let why = format!("{count} bytes at offset {offset} are not inside the {} bytes there are", self.len);
            return Err(Error::argument("aclrtMemcpy", why));
        }
        if count == 0 {
            return Ok(None);
        }
        self.context.enter()?;
        // The address is the device's, so it is computed, not dereferenced.
        Ok(Some(self.ptr.wrapping_byte_add(offset)))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.ptr.is_null() {
            return;
        }
        let libs = self.context.libraries();
        // SAFETY: by (2) freed here and only once.
        let freed = self.context.enter().and_then(|()| unsafe { acl::free(libs, self.ptr) });
        if let Err(error) = freed {
            libs.keep_drop_error(error);
        }
    }
}

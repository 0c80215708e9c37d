//! A device bound to this thread, and its contexts.

#![expect(unsafe_code, reason = "gives back what this thread took")]

use std::rc::Rc;

use crate::{
    loader::Libraries,
    result::{Error, Result, acl},
    sys::AclrtContext,
};

/// A device bound to this thread; unbound when the last guard that needs it is dropped.
#[derive(Clone, Debug)]
pub struct Device(Rc<Bound>);

#[derive(Debug)]
struct Bound {
    libs: &'static Libraries,
    id: i32,
    /// Invariant: the device's default context on this thread, or null where the library cannot tell it:
    /// such a thread can use one device only.
    default_context: AclrtContext,
}

impl Device {
    /// Binds this thread to a device by its logical number, initialising AscendCL when nobody has.
    ///
    /// # Errors
    /// When there is no such device, or the library lacks a call needed for it.
    pub fn open(libs: &'static Libraries, id: i32) -> Result<Self> {
        acl::init(libs)?;
        acl::set_device(libs, id)?;
        // From here on the guard undoes the binding.
        let mut bound = Bound { libs, id, default_context: AclrtContext::NULL };
        match acl::current_context(libs) {
            Ok(context) => bound.default_context = context,
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
        Ok(Self(Rc::new(bound)))
    }

    /// The logical number.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.0.id
    }

    /// The libraries it was opened with.
    #[must_use]
    pub fn libraries(&self) -> &'static Libraries {
        self.0.libs
    }

    /// The context the device has of itself.
    #[must_use]
    pub fn default_context(&self) -> Context {
        let raw = self.0.default_context;
        Context(Rc::new(Inner { device: self.clone(), raw, created: false }))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: this undoes the one `set_device` of `Device::open`; every guard that uses the device holds it.
        if let Err(error) = unsafe { acl::reset_device(self.libs, self.id) } {
            self.libs.keep_drop_error(error);
        }
    }
}

/// A context: where streams, events and memory live. Clones are the same context.
#[derive(Clone, Debug)]
pub struct Context(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    /// Invariant: alive as long as this value; null only for a default context that the library cannot tell.
    raw: AclrtContext,
    created: bool,
}

impl Context {
    /// Makes a context of its own on a device.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn create(device: &Device) -> Result<Self> {
        let raw = acl::create_context(device.libraries(), device.id())?;
        Ok(Self(Rc::new(Inner { device: device.clone(), raw, created: true })))
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The libraries it was made with.
    #[must_use]
    pub fn libraries(&self) -> &'static Libraries {
        self.0.device.libraries()
    }

    /// The handle, valid as long as a clone of this guard.
    #[must_use]
    pub fn raw(&self) -> AclrtContext {
        self.0.raw
    }

    /// Makes the context current on this thread. Every guard does so before it makes a call.
    ///
    /// # Errors
    /// When the call fails or, for a context that is not the default one, the library lacks it.
    pub fn enter(&self) -> Result<()> {
        if self.0.raw.is_null() {
            return Ok(());
        }
        // SAFETY: the context is alive by the invariant of `raw`.
        unsafe { acl::set_current_context(self.libraries(), self.0.raw) }
    }

    /// A library must never be handed what another one made.
    pub(super) fn require_same_library(&self, symbol: &'static str, other: &Self) -> Result<()> {
        if std::ptr::eq(self.libraries(), other.libraries()) {
            return Ok(());
        }
        Err(Error::argument(symbol, "the guards were made by two different openings of the libraries"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.created {
            return;
        }
        let libs = self.device.libraries();
        // SAFETY: created by `create`, destroyed here once; every guard that uses the context holds it.
        if let Err(error) = unsafe { acl::destroy_context(libs, self.raw) } {
            libs.keep_drop_error(error);
        }
        let default = self.device.0.default_context;
        if default.is_null() {
            return;
        }
        // SAFETY: the default context lives as long as the device is bound. Without this the thread would have none.
        if let Err(error) = unsafe { acl::set_current_context(libs, default) } {
            libs.keep_drop_error(error);
        }
    }
}

//! Tables of optional functions, and the error for the ones a library lacks.

use std::{
    ffi::{CStr, c_void},
    fmt,
    path::PathBuf,
    ptr::NonNull,
    sync::Arc,
};

/// The address of a function in a loaded library.
pub(crate) type Address = NonNull<c_void>;

/// One function a table knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The name in the library.
    pub name: &'static str,
    /// The oldest version known to have it, in words.
    pub since: &'static str,
}

/// Where the functions of a table come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The files opened, in the order symbols are looked up.
    pub files: Vec<PathBuf>,
    /// Files of the same folder that were tried and could not be used, with the reason.
    pub unusable: Vec<String>,
    /// The installed version, as the files beside the library tell it.
    pub version: Option<String>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.files.is_empty() {
            f.write_str("no library")?;
        }
        for (i, file) in self.files.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " and " }, file.display())?;
        }
        if let Some(version) = &self.version {
            write!(f, " (version {version})")?;
        }
        for reason in &self.unusable {
            write!(f, ", without {reason}")?;
        }
        Ok(())
    }
}

/// A function was called that the loaded library does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSymbol {
    /// The function.
    pub symbol: Symbol,
    /// Where it was looked for.
    pub origin: Arc<Origin>,
}

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Symbol { name, since } = self.symbol;
        if self.origin.files.is_empty() {
            return write!(f, "{name} is missing: no library that could have it was found (known since {since})");
        }
        write!(f, "{name} is not in {} (known since {since}): install a newer CANN or do without it", self.origin)
    }
}

impl std::error::Error for MissingSymbol {}

/// Declares a table: a struct with one private optional function pointer per symbol, a method of the same name that returns it
/// or says what is missing, the list of symbols, and the loading of them all. The fields are private because safe
/// functions call what is in them.
macro_rules! function_table {
    (
        $(#[$meta:meta])* $table:ident;
        $($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty, since $since:literal;)*
    ) => {
        $(#[$meta])*
        #[expect(non_snake_case, reason = "functions keep the names of the C interface")]
        #[derive(Clone, Debug, Default)]
        pub struct $table {
            $(
                $name: Option<unsafe extern "C" fn($($arg: $ty),*) -> $ret>,
            )*
            origin: std::sync::Arc<$crate::sys::Origin>,
        }

        #[expect(non_snake_case, reason = "functions keep the names of the C interface")]
        impl $table {
            /// Every function this table knows of.
            pub const SYMBOLS: &'static [$crate::sys::Symbol] =
                &[$($crate::sys::Symbol { name: stringify!($name), since: $since }),*];

            /// The files the functions come from.
            #[must_use]
            pub fn origin(&self) -> &$crate::sys::Origin {
                &self.origin
            }

            /// The functions of [`SYMBOLS`](Self::SYMBOLS) that the library does not have.
            pub fn missing(&self) -> impl Iterator<Item = $crate::sys::Symbol> {
                let there = [$(self.$name.is_some()),*];
                Self::SYMBOLS.iter().zip(there).filter(|(_, there)| !there).map(|(symbol, _)| *symbol)
            }

            /// Fills the table with what `lookup` finds.
            ///
            /// # Safety
            /// Each address returned is that of a function of the C interface with the name asked for, and stays valid
            /// for the life of the process.
            pub(crate) unsafe fn load(
                origin: $crate::sys::Origin,
                lookup: &mut dyn FnMut(&std::ffi::CStr) -> Option<$crate::sys::Address>,
            ) -> Self {
                Self {
                    $($name: lookup($crate::sys::table::c_name(concat!(stringify!($name), "\0"))).map(|address| {
                        // SAFETY: by this function's contract the address is a function of this name, whose signature
                        // is the declared one; object and function pointers have one size where libraries are loaded.
                        unsafe {
                            std::mem::transmute::<$crate::sys::Address, unsafe extern "C" fn($($ty),*) -> $ret>(address)
                        }
                    }),)*
                    origin: std::sync::Arc::new(origin),
                }
            }

            $(
                $(#[$doc])*
                #[doc = concat!("\n\nKnown since ", $since, ".")]
                ///
                /// # Errors
                /// When the library does not have the function.
                pub fn $name(
                    &self,
                ) -> Result<unsafe extern "C" fn($($arg: $ty),*) -> $ret, $crate::sys::MissingSymbol> {
                    self.$name.ok_or_else(|| $crate::sys::MissingSymbol {
                        symbol: $crate::sys::Symbol { name: stringify!($name), since: $since },
                        origin: std::sync::Arc::clone(&self.origin),
                    })
                }
            )*
        }
    };
}

pub(super) use function_table;

/// The name as C sees it. `text` ends in a zero byte by construction; a text that does not gives the empty name, which
/// no library has.
pub(super) fn c_name(text: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or_default()
}

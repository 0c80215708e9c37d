//! Integer newtypes that know their documented names.

/// Declares an integer of the C interface: a transparent newtype, its named values, and a `Display` that says the C
/// name, the meaning and, where one exists, the remedy. Any other value is legal and prints as unknown.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident($repr:ty) {
        $($konst:ident = $value:literal, $c_name:literal, $meaning:literal $(, $remedy:literal)?;)*
    }) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(
            /// The value as it crosses the C interface.
            pub $repr,
        );

        impl $name {
            $(
                #[doc = concat!("`", $c_name, "`: ", $meaning, ".")]
                pub const $konst: Self = Self($value);
            )*

            /// Every value this crate has a name for, in the order of the C interface.
            pub const ALL: &'static [Self] = &[$(Self($value)),*];

            /// The C name, the meaning and the remedy (empty where there is nothing to do), or `None` for a value
            /// unknown here.
            const fn entry(self) -> Option<(&'static str, &'static str, &'static str)> {
                match self.0 {
                    $($value => Some(($c_name, $meaning, concat!($($remedy)?))),)*
                    _ => None,
                }
            }

            /// The name the C interface gives this value, or `None` for a value unknown here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.entry() { Some((name, _, _)) => Some(name), None => None }
            }

            /// What the value says, in this project's words, or `None` for a value unknown here.
            #[must_use]
            pub const fn meaning(self) -> Option<&'static str> {
                match self.entry() { Some((_, meaning, _)) => Some(meaning), None => None }
            }

            /// What to do about it, or `None` where nothing is to be done or the value is unknown here.
            #[must_use]
            pub const fn remedy(self) -> Option<&'static str> {
                match self.entry() { Some((_, _, remedy)) if !remedy.is_empty() => Some(remedy), _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.entry() {
                    Some((name, meaning, "")) => write!(f, "{name} ({}): {meaning}", self.0),
                    Some((name, meaning, remedy)) => write!(f, "{name} ({}): {meaning}; {remedy}", self.0),
                    None => write!(f, "{} {} (unknown to this version of ascend-sys)", stringify!($name), self.0),
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({}", stringify!($name), self.0)?;
                match self.name() {
                    Some(name) => write!(f, " {name})"),
                    None => f.write_str(")"),
                }
            }
        }

        impl From<$repr> for $name {
            fn from(value: $repr) -> Self {
                Self(value)
            }
        }
    };
}

pub(super) use codes;

/// Declares an opaque handle: a pointer-sized token that only the library which made it may look into.
macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {$(
        $(#[$meta])*
        ///
        /// A plain copy of the library's pointer: it frees nothing, and copying it does not keep the object alive.
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(
            /// The pointer as it crosses the C interface.
            pub *mut std::ffi::c_void,
        );

        impl $name {
            /// No object.
            pub const NULL: Self = Self(std::ptr::null_mut());

            /// Whether this is [`NULL`](Self::NULL).
            #[must_use]
            pub const fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::NULL
            }
        }

        const _: () = assert!(size_of::<$name>() == size_of::<*mut std::ffi::c_void>());
    )*};
}

pub(super) use handles;

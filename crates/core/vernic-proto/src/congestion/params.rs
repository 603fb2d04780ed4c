//! Tables of parameters: a struct, and what a text may set in it.

use thiserror::Error;

/// Why parameters of an algorithm were refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParamError {
    /// No algorithm has the name.
    #[error("no congestion control is called {0:?}")]
    Algorithm(String),
    /// The algorithm has no parameters, or none of that name.
    #[error("{algorithm} has no parameter {name:?}; it has: {known}")]
    Unknown {
        /// The algorithm.
        algorithm: &'static str,
        /// What was asked for.
        name: String,
        /// The parameters that there are.
        known: String,
    },
    /// A parameter has two values.
    #[error("{name} is given twice")]
    Twice {
        /// The parameter.
        name: String,
    },
    /// The value is no number, or out of range.
    #[error("{name} of {algorithm} is {value:?}, and must be {min} to {max} {unit}")]
    Value {
        /// The algorithm.
        algorithm: &'static str,
        /// The parameter.
        name: &'static str,
        /// What it should have become.
        value: String,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
        /// Unit of the value.
        unit: &'static str,
    },
    /// One value is above another that bounds it.
    #[error(
        "{lower} of {algorithm} is {lower_value} {unit}, above {upper}, which is {upper_value} {unit}: \
         lower {lower} or raise {upper}"
    )]
    Contradiction {
        /// The algorithm.
        algorithm: &'static str,
        /// The parameter that must be the smaller one.
        lower: &'static str,
        /// The value of that one.
        lower_value: u32,
        /// The parameter that bounds it.
        upper: &'static str,
        /// The bound: what the parameter says, or what its 0 stands for.
        upper_value: u32,
        /// Unit of both values.
        unit: &'static str,
    },
}

/// Refuses a parameter above one that bounds it, of an algorithm and a unit.
pub(super) fn check_order(
    (algorithm, unit): (&'static str, &'static str),
    (lower, lower_value): (&'static str, u32),
    (upper, upper_value): (&'static str, u32),
) -> Result<(), ParamError> {
    if lower_value <= upper_value {
        return Ok(());
    }
    Err(ParamError::Contradiction { algorithm, lower, lower_value, upper, upper_value, unit })
}

/// One parameter of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name, as in the paper or an adapter's driver.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Smallest value.
    pub min: u32,
    /// Largest value.
    pub max: u32,
    /// Unit of the value.
    pub unit: &'static str,
    /// Value if nothing is set.
    pub default: u32,
}

/// Declares the parameters of an algorithm: the struct, its defaults, and how a text sets them.
macro_rules! params {
    (
        $(#[$attribute:meta])*
        $name:ident, $algorithm:literal;
        $($(#[doc = $doc:literal])+ $field:ident: $default:literal, $min:literal..=$max:expr, $unit:literal;)+
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])+ #[doc = concat!("(", $unit, ")")] pub $field: u32,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            /// The table of parameters.
            pub const TABLE: &[$crate::congestion::Param] = &[$($crate::congestion::Param {
                name: stringify!($field),
                doc: concat!($($doc,)+),
                min: $min,
                max: $max,
                unit: $unit,
                default: $default,
            },)+];

            /// Sets one parameter to what a text says.
            ///
            /// # Errors
            /// An unknown name, or a value out of range.
            pub fn set(&mut self, name: &str, value: &str) -> Result<(), $crate::congestion::ParamError> {
                match name {
                    $(stringify!($field) => {
                        let number = value.parse().ok().filter(|n| ($min..=$max).contains(n));
                        self.$field = number.ok_or_else(|| $crate::congestion::ParamError::Value {
                            algorithm: $algorithm,
                            name: stringify!($field),
                            value: value.to_owned(),
                            min: $min,
                            max: $max,
                            unit: $unit,
                        })?;
                        Ok(())
                    })+
                    _ => Err($crate::congestion::ParamError::Unknown {
                        algorithm: $algorithm,
                        name: name.to_owned(),
                        known: [$(stringify!($field)),+].join(", "),
                    }),
                }
            }

            /// Checks each value against its range, and against the values that bound it.
            ///
            /// # Errors
            /// The first value that is out of range, or else the first that contradicts another.
            pub fn check(&self) -> Result<(), $crate::congestion::ParamError> {
                $(if !($min..=$max).contains(&self.$field) {
                    return Err($crate::congestion::ParamError::Value {
                        algorithm: $algorithm,
                        name: stringify!($field),
                        value: self.$field.to_string(),
                        min: $min,
                        max: $max,
                        unit: $unit,
                    });
                })+
                self.check_orders()
            }

            /// The parameters that differ from their defaults, as a text sets them.
            fn write_changes(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $(if self.$field != $default {
                    write!(f, concat!(",", stringify!($field), "={}"), self.$field)?;
                })+
                Ok(())
            }
        }

        impl ::core::fmt::Display for $name {
            /// Writes the parameters as a setting has them, those with their defaults left out.
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str($algorithm)?;
                self.write_changes(f)
            }
        }
    };
}

pub(super) use params;

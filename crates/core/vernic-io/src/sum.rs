//! Sums of counters, field by field.

/// Lets a struct of counters be added to another. A field that is not listed does not compile.
#[macro_export]
macro_rules! sum_fields {
    ($counters:ident: $($field:ident),* $(,)?) => {
        impl std::ops::AddAssign for $counters {
            fn add_assign(&mut self, more: Self) {
                let Self { $($field),* } = more;
                $(self.$field += $field;)*
            }
        }
    };
}

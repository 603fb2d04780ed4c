//! Medians of readings.

/// The middle one; of an even number the mean of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        Some(upper)
    } else {
        Some((values[values.len() / 2 - 1] + upper) / 2.0)
    }
}

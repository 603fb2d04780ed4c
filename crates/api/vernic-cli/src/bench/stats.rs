//! Percentiles of samples and medians over rounds.

/// The value below or at which `permille` thousandths of the samples lie (nearest rank).
///
/// Sorts `samples`. `None` when there are none.
pub(crate) fn percentile(samples: &mut [u64], permille: usize) -> Option<u64> {
    if samples.is_empty() {
        return None;
    }
    samples.sort_unstable();
    let rank = (samples.len() * permille).div_ceil(1000).clamp(1, samples.len());
    Some(samples[rank - 1])
}

/// The median of the finite values; of an even number of them, the mean of the middle two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut samples: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut samples, 500), Some(100));
        assert_eq!(percentile(&mut samples, 990), Some(198));
        assert_eq!(percentile(&mut samples, 1000), Some(200));
        assert_eq!(percentile(&mut samples, 0), Some(1));
        assert_eq!(percentile(&mut [7], 990), Some(7));
        assert_eq!(percentile(&mut [], 500), None);
    }

    #[test]
    fn the_median_ignores_what_is_not_a_number() {
        assert_eq!(median([3.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([f64::INFINITY]), None);
        assert_eq!(median([]), None);
    }
}

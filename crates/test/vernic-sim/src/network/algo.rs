//! The congestion control of a run: one that `vernic-proto` has, by its name.

use vernic_proto::congestion::Algorithm;

use super::units::Rate;

/// Reads an algorithm with its parameters, as in `dcqcn,rpg_time_reset=55`. Hosts here pace each
/// packet, as adapters do, so the quantum of what leaves together is 0 unless the text says more.
///
/// # Errors
/// What there is not, in words.
pub fn algorithm(text: &str) -> Result<Algorithm, String> {
    let (name, params) = text.split_at(text.find(',').unwrap_or(text.len()));
    let paced = format!("{name},pacing_quantum=0{params}");
    paced.parse().or_else(|_| text.parse()).map_err(|error| {
        format!("{error}; there are {}, with parameters behind", Algorithm::NAMES.join(", "))
    })
}

/// The algorithm, with the rate of the hosts' links as the largest where it names none.
///
/// # Errors
/// Parameters that this rate contradicts, in words.
pub(super) fn at_rate(mut algorithm: Algorithm, rate: Rate) -> Result<Algorithm, String> {
    if let Algorithm::Dcqcn(params) = &mut algorithm
        && params.rpg_max_rate == 0
    {
        params.rpg_max_rate = rate.gbps() * 1000;
        let checked = algorithm.check();
        checked.map_err(|error| format!("{error}, which is the rate of the links here"))?;
    }
    Ok(algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_paces_each_packet_unless_its_text_says_otherwise() {
        let quantum = |text| match algorithm(text) {
            Ok(Algorithm::Dcqcn(params)) => params.pacing_quantum,
            other => panic!("{other:?}"),
        };
        assert_eq!(quantum("dcqcn,rpg_threshold=3"), 0);
        assert_eq!(quantum("dcqcn,pacing_quantum=100"), 100);
        assert_eq!(algorithm("aimd"), Ok(Algorithm::Aimd));
    }

    #[test]
    fn a_wrong_name_or_value_is_named_with_what_is_allowed() {
        assert!(algorithm("bbr").unwrap_err().contains("\"bbr\"; there are aimd, dcqcn"));
        let error = algorithm("dcqcn,rpg_threshold=99").unwrap_err();
        assert!(error.contains("rpg_threshold of dcqcn is \"99\", and must be 1 to 31"), "{error}");
    }

    #[test]
    fn the_largest_rate_is_that_of_the_link() {
        let at_25 = |text| at_rate(algorithm(text).unwrap(), Rate::new(25).unwrap());
        let fastest = |text| match at_25(text) {
            Ok(Algorithm::Dcqcn(params)) => params.rpg_max_rate,
            other => panic!("{other:?}"),
        };
        assert_eq!([fastest("dcqcn"), fastest("dcqcn,rpg_max_rate=7")], [25_000, 7]);
        let error = at_25("dcqcn,rpg_min_rate=26000").unwrap_err();
        assert!(error.contains("above rpg_max_rate, which is 25000 Mb/s"), "{error}");
    }
}

//! Any text as a file of settings and as a specification of faults: what is accepted is shown in a
//! form that means the same, what is not has a reason.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vernic::Config;
use vernic_io::fault::FaultConfig;

fuzz_target!(|text: &str| {
    let mut config = Config::default();
    match config.parse_file(text, "fuzz") {
        Ok(()) => {
            let mut copy = Config::default();
            for (key, value) in config.values() {
                copy.set(key.name, &value).expect("a value that was shown is accepted");
            }
            assert_eq!(copy, config);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<FaultConfig>() {
        Ok(faults) => assert_eq!(faults.to_string().parse(), Ok(faults)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

//! The versions of the C symbols, from `abi/exports.txt`.

fn main() {
    vernic_symver::build();
}

//! Queue pairs against each other and against hand-made FPDUs.

mod ending;
mod greeting;
mod hostile;
mod messages;
mod order;
mod pair;
mod raw;
mod violations;

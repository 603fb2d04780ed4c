//! How busy a cable is, as a colour and in words.

use std::fmt::{self, Display, Formatter};

/// Styles of everything: `c0` to `c9` are cables by load, `cn` those without one.
pub(super) const STYLE: &str = "<style>\
.fabric{background:#fff;font-family:sans-serif}\
.fabric path{fill:none}\
.fabric text{text-anchor:middle;fill:#111}\
.fabric rect{stroke:#334;stroke-width:1}\
.fabric .s rect{fill:#dde6f4}.fabric .s text{font-size:10px}\
.fabric .h rect{fill:#f4f1e6}.fabric .h text{font-size:8px}\
.fabric .k text{font-size:11px}\
.fabric .cn{stroke:#b4b4b4;stroke-width:1}\
.fabric .c0{stroke:#a8cfe8;stroke-width:1}.fabric .c1{stroke:#74b3d8;stroke-width:1}\
.fabric .c2{stroke:#3f94c4;stroke-width:1}.fabric .c3{stroke:#3fa66b;stroke-width:1.5}\
.fabric .c4{stroke:#8cba3c;stroke-width:1.5}.fabric .c5{stroke:#d8b92e;stroke-width:1.5}\
.fabric .c6{stroke:#e8952a;stroke-width:2}.fabric .c7{stroke:#e0662a;stroke-width:2}\
.fabric .c8{stroke:#c8302a;stroke-width:2.5}.fabric .c9{stroke:#86102a;stroke-width:3}\
</style>";

/// Load of a cable, 0.0 to 1.0, if it is known.
#[derive(Clone, Copy)]
pub(super) struct Load(Option<f32>);

impl Load {
    pub(super) fn new(load: Option<f32>) -> Self {
        Self(load.filter(|load| !load.is_nan()).map(|load| load.clamp(0.0, 1.0)))
    }

    /// The class of the cable in [`STYLE`]: a tenth of the range each.
    pub(super) fn class(self) -> &'static str {
        const CLASSES: [&str; 10] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"];
        self.0.map_or("cn", |load| CLASSES[((load * 10.0) as usize).min(9)])
    }
}

impl Display for Load {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |load| write!(f, ", load {:.0} %", load * 100.0))
    }
}

/// What the colours mean, at the top left.
pub(super) struct Legend;

impl Display for Legend {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("<g class=\"k\"><text x=\"34\" y=\"21\">load: 0 %</text>")?;
        for step in 0..10_u8 {
            let load = Load::new(Some(f32::from(step) / 10.0 + 0.05));
            write!(f, "<path class=\"{}\" d=\"M{} 17h9\"/>", load.class(), 66 + 10 * step)?;
        }
        f.write_str("<text x=\"186\" y=\"21\">100 %</text></g>")
    }
}

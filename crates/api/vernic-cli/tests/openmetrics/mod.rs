//! A strict reader of metrics: OpenMetrics 1.0 as far as families without timestamps and exemplars
//! need it, and the text format 0.0.4 of Prometheus. What it does not know is an error.
#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};

/// The families of a text, by their names.
pub type Families = BTreeMap<String, Family>;

/// A family and its samples.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    pub unit: Option<String>,
    pub help: Option<String>,
    pub samples: Vec<Sample>,
}

/// A sample.
#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Reads OpenMetrics.
pub fn open_metrics(text: &str) -> Result<Families, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no `# EOF` with a newline at the end")?;
    read(body, true)
}

/// Reads the text format of Prometheus.
pub fn prometheus(text: &str) -> Result<Families, String> {
    read(text, false)
}

fn read(text: &str, is_open: bool) -> Result<Families, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no newline".into());
    }
    let mut families = Families::new();
    let (mut current, mut series) = (String::new(), BTreeSet::new());
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        let failed = |why: &str| format!("{why}: {line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').ok_or_else(|| failed("half a line"))?;
            let (name, value) = rest.split_once(' ').ok_or_else(|| failed("no value"))?;
            if !is_name(name, true) {
                return Err(failed("no name of a family"));
            }
            if name != current {
                if families.contains_key(name) {
                    return Err(failed("a family in two places"));
                }
                families.insert(name.to_owned(), Family::default());
                name.clone_into(&mut current);
            }
            let family = families.get_mut(name).ok_or_else(|| failed("no family"))?;
            if !family.samples.is_empty() {
                return Err(failed("behind the samples of its family"));
            }
            describe(family, name, (word, value), is_open).map_err(|why| failed(&why))?;
        } else {
            let sample = sample(line).map_err(|why| failed(&why))?;
            let family = families.get_mut(&current).ok_or_else(|| failed("before any family"))?;
            belongs(&sample, &current, family, is_open).map_err(|why| failed(&why))?;
            if !series.insert((sample.name.clone(), sample.labels.clone())) {
                return Err(failed("a series twice"));
            }
            family.samples.push(sample);
        }
    }
    no_clashes(&families)?;
    Ok(families)
}

/// Takes a line of metadata.
fn describe(
    family: &mut Family,
    name: &str,
    (word, value): (&str, &str),
    is_open: bool,
) -> Result<(), String> {
    const KINDS: [&str; 8] = [
        "counter",
        "gauge",
        "info",
        "stateset",
        "histogram",
        "gaugehistogram",
        "summary",
        "unknown",
    ];
    match word {
        "TYPE" if !family.kind.is_empty() => return Err("a second type".into()),
        "TYPE" if is_open && KINDS.contains(&value) => value.clone_into(&mut family.kind),
        "TYPE" if ["counter", "gauge"].contains(&value) => value.clone_into(&mut family.kind),
        "UNIT" if is_open && family.unit.is_none() => {
            if !name.ends_with(&format!("_{value}")) || value.is_empty() {
                return Err("the unit is not the last word of the name".into());
            }
            family.unit = Some(value.to_owned());
        }
        "HELP" if family.help.is_none() => family.help = Some(unescape(value)?),
        _ => return Err(format!("{word} {value} may not stand here")),
    }
    match (&*family.kind, &family.unit) {
        ("info" | "stateset", Some(_)) => Err("a unit of a type that has none".into()),
        _ => Ok(()),
    }
}

/// Whether a sample may stand in a family.
fn belongs(sample: &Sample, name: &str, family: &Family, is_open: bool) -> Result<(), String> {
    let suffix = match &*family.kind {
        "counter" if is_open => "_total",
        "info" => "_info",
        "counter" | "gauge" => "",
        other => return Err(format!("samples of type {other:?} are not known")),
    };
    if sample.name.strip_prefix(name) != Some(suffix) {
        return Err(format!("not {name}{suffix}"));
    }
    match &*family.kind {
        "counter" if sample.name.ends_with("_total") && sample.value >= 0.0 => Ok(()),
        "counter" => Err("a counter is named _total, and is not negative".into()),
        "info" if sample.value != 1.0 => Err("the value of an info is 1".into()),
        _ => Ok(()),
    }
}

/// No two families have samples of the same name.
fn no_clashes(families: &Families) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for (name, family) in families {
        let suffix = match &*family.kind {
            "" => return Err(format!("{name} has no type")),
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let sample = format!("{name}{suffix}");
        if !names.insert(sample.clone()) {
            return Err(format!("two families have samples {sample}"));
        }
    }
    Ok(())
}

fn is_name(text: &str, may_have_colons: bool) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || (c == ':' && may_have_colons);
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("neither labels nor a value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name, true) {
        return Err("no name of a metric".into());
    }
    let mut labels = BTreeMap::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (label, behind) = inner.split_once("=\"").ok_or("no value of a label")?;
            if !is_name(label, false) || label.starts_with("__") {
                return Err(format!("no name of a label: {label:?}"));
            }
            let end = end_of_string(behind).ok_or("a value without its end")?;
            let value = unescape(&behind[..end])?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("the label {label} twice"));
            }
            let behind = &behind[end + 1..];
            match (behind.strip_prefix(','), behind.strip_prefix('}')) {
                (Some(next), _) => inner = next,
                (_, Some(end)) => {
                    rest = end;
                    break;
                }
                _ => return Err("no end of the labels".into()),
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let is_number = value.chars().all(|c| c.is_ascii_digit() || ".-+e".contains(c));
    match value.parse() {
        Ok(value) if is_number => Ok(Sample { name: name.to_owned(), labels, value }),
        _ => Err(format!("no number: {value:?}")),
    }
}

/// Where the quote is that ends a string.
fn end_of_string(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end.then_some(at)
    })
}

fn unescape(text: &str) -> Result<String, String> {
    let (mut plain, mut letters) = (String::new(), text.chars());
    while let Some(c) = letters.next() {
        match (c, c == '\\') {
            ('"', _) => return Err("a quote that is not escaped".into()),
            (_, false) => plain.push(c),
            (_, true) => plain.push(match letters.next() {
                Some('n') => '\n',
                Some(c @ ('"' | '\\')) => c,
                other => return Err(format!("the escape {other:?}")),
            }),
        }
    }
    Ok(plain)
}

#[test]
fn the_reader_takes_what_is_right() {
    let text = "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes One \\\"a\\\".\n\
        a_bytes_total{x=\"1\",y=\"\\\"\\n\\\\,}{\"} 7\na_bytes_total{x=\"2\"} 1e3\n\
        # TYPE b info\nb_info{x=\"é\"} 1\n# TYPE c gauge\nc -0.25\n# EOF\n";
    let families = open_metrics(text).unwrap();
    let first = &families["a_bytes"];
    assert_eq!(first.samples[0].labels["y"], "\"\n\\,}{");
    assert_eq!((first.samples[1].value, families["c"].samples[0].value), (1000.0, -0.25));
    let text = "# TYPE a_total counter\na_total 7\n# TYPE b_info gauge\nb_info{x=\"1\"} 1\n";
    assert_eq!(prometheus(text).unwrap().len(), 2);
}

#[test]
fn the_reader_refuses_what_is_wrong() {
    for (body, why) in [
        ("", "no `# EOF`"),
        ("# TYPE a gauge\na 1\n# EOF", "no `# EOF`"),
        ("# TYPE a gauge\na 1\n# EOF\n# EOF\n", "half a line"),
        ("# TYPE a gauge\n\na 1\n# EOF\n", "neither labels"),
        ("a 1\n# EOF\n", "before any family"),
        ("# TYPE a counter\na 1\n# EOF\n", "not a_total"),
        ("# TYPE a counter\na_total -1\n# EOF\n", "not negative"),
        ("# TYPE a info\na_info{x=\"1\"} 2\n# EOF\n", "is 1"),
        ("# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n", "last word"),
        ("# TYPE a_bytes info\n# UNIT a_bytes bytes\n# EOF\n", "has none"),
        ("# TYPE a gauge\n# TYPE a gauge\n# EOF\n", "second type"),
        ("# TYPE a number\n# EOF\n", "may not stand here"),
        ("# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\n# TYPE a gauge\n# EOF\n", "two places"),
        ("# TYPE a gauge\na 1\n# HELP a Late.\n# EOF\n", "behind the samples"),
        ("# TYPE a gauge\na{x=\"1\"} 1\na{x=\"1\"} 2\n# EOF\n", "series twice"),
        ("# TYPE a gauge\na{x=\"1\",x=\"2\"} 1\n# EOF\n", "label x twice"),
        ("# TYPE a gauge\na{x=\"\\t\"} 1\n# EOF\n", "the escape"),
        ("# TYPE a gauge\na{x=\"1} 1\n# EOF\n", "without its end"),
        ("# TYPE a gauge\na{x=\"1\" } 1\n# EOF\n", "no end of the labels"),
        ("# TYPE a gauge\na{1=\"1\"} 1\n# EOF\n", "no name of a label"),
        ("# TYPE a gauge\na  1\n# EOF\n", "no number"),
        ("# TYPE a gauge\na nan\n# EOF\n", "no number"),
        ("# TYPE a gauge\na 1\r\n# EOF\n", "no number"),
        ("# TYPE 1a gauge\n# EOF\n", "no name of a family"),
        ("# HELP a Of no type.\n# EOF\n", "no type"),
        ("# TYPE a counter\n# TYPE a_total gauge\n# EOF\n", "two families"),
    ] {
        let found = open_metrics(body).err().unwrap_or_else(|| panic!("{body:?} was taken"));
        assert!(found.contains(why), "{found}");
    }
    assert!(prometheus("# TYPE a info\na_info 1\n").is_err());
    assert!(prometheus("# TYPE a counter\na_total 1\n").is_err());
    assert!(prometheus("# TYPE a gauge\na 1\n# EOF\n").is_err());
}

//! The generated parts of Markdown pages: everything between two marks.

use crate::{Result, root};

/// A generated part of a page: which page, and the two lines that enclose it.
pub(crate) struct Part {
    /// The page, relative to the root.
    pub(crate) page: &'static str,
    /// The line before it.
    pub(crate) begin: &'static str,
    /// The line after it.
    pub(crate) end: &'static str,
}

impl Part {
    /// Rewrites the part; true if that changed the page.
    pub(crate) fn write(&self, content: &str) -> Result<bool> {
        let (old, new) = self.with(content)?;
        if old == new {
            return Ok(false);
        }
        let why = |e| format!("{}: {e}", self.page);
        std::fs::write(root().join(self.page), new).map_err(why)?;
        Ok(true)
    }

    /// What is between the marks.
    pub(crate) fn read(&self) -> Result<String> {
        self.parts(&self.whole()?).map(|(_, content, _)| content.to_owned())
    }

    /// The page that it is a part of.
    pub(crate) fn whole(&self) -> Result<String> {
        std::fs::read_to_string(root().join(self.page)).map_err(|e| format!("{}: {e}", self.page))
    }

    /// Whether the page has exactly this content between its marks.
    pub(crate) fn is(&self, content: &str) -> Result<bool> {
        let (old, new) = self.with(content)?;
        Ok(old == new)
    }

    /// The page as it is, and as it is with this content.
    fn with(&self, content: &str) -> Result<(String, String)> {
        let old = self.whole()?;
        let new = self.replace(&old, content)?;
        Ok((old, new))
    }

    fn replace(&self, text: &str, content: &str) -> Result<String> {
        let Self { begin, end, .. } = self;
        let (head, _, tail) = self.parts(text)?;
        Ok(format!("{head}{begin}\n\n{}\n\n{end}{tail}", content.trim_end()))
    }

    /// What is before the marks, between them, and after them.
    fn parts<'a>(&self, text: &'a str) -> Result<(&'a str, &'a str, &'a str)> {
        let Self { page, begin, end } = self;
        let missing = |mark| format!("{page}: there is no line `{mark}`");
        let (head, rest) = text.split_once(begin).ok_or_else(|| missing(begin))?;
        let (content, tail) = rest.split_once(end).ok_or_else(|| missing(end))?;
        Ok((head, content, tail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = Part { page: "PAGE.md", begin: "<!-- begin -->", end: "<!-- end -->" };

    #[test]
    fn only_what_lies_between_the_marks_is_replaced() {
        let page = "# Title\n<!-- begin -->\nold\n<!-- end -->\nkept\n";
        let new = PART.replace(page, "new\n").unwrap();
        assert_eq!(new, "# Title\n<!-- begin -->\n\nnew\n\n<!-- end -->\nkept\n");
        assert_eq!(PART.replace(&new, "new\n").unwrap(), new);
    }

    #[test]
    fn a_page_without_marks_is_an_error() {
        assert!(PART.replace("# Title\n", "new").is_err());
    }
}

//! The table of messages: key, English, Japanese. Each topic has its lines in a file of its own.

macro_rules! messages {
    (: $($key:ident: $english:literal, $japanese:literal;)*) => {
        /// The texts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Message { $(#[doc = concat!("`", $english, "`")] $key,)* }

        impl Message {
            /// All texts.
            pub const ALL: &[Self] = &[$(Self::$key),*];

            /// Returns the texts by language.
            pub(super) fn texts(self) -> [&'static str; 2] {
                match self { $(Self::$key => [$english, $japanese],)* }
            }
        }
    };
}

// Each topic adds its lines and passes all lines to the next; the last one builds the table.
loads! { metrics report advice pages charts messages:
    // Names of languages, in the language itself.
    LanguageName: "English", "日本語";
}

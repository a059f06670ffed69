//! From `extern` declarations, which would have to be linked, to a table of functions that is filled at run time.

use anyhow::{Result, bail, ensure};
use quote::quote;
use std::collections::BTreeMap;
use syn::{File, ForeignItem, Item};

/// Replaces the `extern` blocks of `file` by a struct `Functions`: `required` functions as they are, the others as results.
pub(crate) fn function_table(mut file: File, required: &[&str]) -> Result<File> {
    let mut functions = BTreeMap::new();
    for item in &file.items {
        let Item::ForeignMod(block) = item else { continue };
        for foreign in &block.items {
            let ForeignItem::Fn(function) = foreign else { bail!("an extern block has more than functions") };
            ensure!(function.sig.variadic.is_none(), "{} is variadic", function.sig.ident);
            ensure!(
                !function.attrs.iter().any(|attribute| attribute.path().is_ident("link_name")),
                "{} has C++ linkage",
                function.sig.ident
            );
            functions.insert(function.sig.ident.to_string(), function.sig.clone());
        }
    }
    if let Some(name) = required.iter().find(|&&name| !functions.contains_key(name)) {
        bail!("the header declares no {name}");
    }
    file.items.retain(|item| !matches!(item, Item::ForeignMod(_)));

    let (mut fields, mut values) = (Vec::new(), Vec::new());
    for (name, signature) in &functions {
        let (ident, inputs, output) = (&signature.ident, &signature.inputs, &signature.output);
        let pointer = quote!(unsafe extern "C" fn(#inputs) #output);
        if required.contains(&name.as_str()) {
            fields.push(quote!(pub #ident: #pointer));
            values.push(quote!(#ident: symbols.get(#name)?));
        } else {
            fields.push(quote!(pub #ident: Result<#pointer, crate::MissingSymbol>));
            values.push(quote!(#ident: symbols.get(#name)));
        }
    }
    file.items.push(syn::parse2(quote! {
        #[derive(Clone, Debug)]
        pub struct Functions { #(#fields,)* }
    })?);
    file.items.push(syn::parse2(quote! {
        impl Functions {
            pub(crate) unsafe fn resolve(symbols: &crate::Symbols<'_>) -> Result<Self, crate::MissingSymbol> {
                unsafe { Ok(Self { #(#values,)* }) }
            }
        }
    })?);
    Ok(file)
}

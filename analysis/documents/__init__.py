"""What is shown of a subject, as a document of sections that every format renders."""
